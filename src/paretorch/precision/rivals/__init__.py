"""The quantization methods that SMOL is compared with, in the same harness."""

from paretorch.precision.rivals.bsq import BSQ
from paretorch.precision.rivals.dorefa import DoReFa
from paretorch.precision.rivals.dsq import DSQ
from paretorch.precision.rivals.lqnets import LQNets
from paretorch.precision.rivals.lsq import LSQ
from paretorch.precision.rivals.pact import PACT
from paretorch.precision.rivals.pact_activations import PACTActivations
from paretorch.precision.rivals.rival import first_and_last
from paretorch.precision.rivals.slb import SLB
from paretorch.precision.rivals.uniform import Uniform

__all__ = ["BSQ", "DSQ", "LSQ", "PACT", "SLB", "DoReFa", "LQNets", "PACTActivations", "Uniform", "first_and_last"]
