"""The quantization methods that SMOL is compared with, in the same harness."""

from paretorch.methods.precision.rivals.bsq import BSQ
from paretorch.methods.precision.rivals.dorefa import DoReFa
from paretorch.methods.precision.rivals.dsq import DSQ
from paretorch.methods.precision.rivals.lqnets import LQNets
from paretorch.methods.precision.rivals.lsq import LSQ
from paretorch.methods.precision.rivals.pact import PACT, PACTActivations
from paretorch.methods.precision.rivals.rival import first_and_last
from paretorch.methods.precision.rivals.slb import SLB
from paretorch.methods.precision.rivals.uniform import Uniform

__all__ = ["BSQ", "DSQ", "LSQ", "PACT", "SLB", "DoReFa", "LQNets", "PACTActivations", "Uniform", "first_and_last"]
