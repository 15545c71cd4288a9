"""The quantization rivals that take the contract: each of the registry, variants, and which networks they take it on."""

from collections.abc import Callable

from torch import Tensor, nn

from paretorch import ContinuousSparsification, Plan, compress
from paretorch.core.method import Method
from paretorch.methods.precision.rivals import BSQ, DSQ, LSQ, PACT, SLB, DoReFa, LQNets, Uniform
from tests.contract.cases import MODELS, STEPS, build, rivals

RIVALS: dict[str, Callable[[], tuple[Method, ...]]] = {
    **rivals("precision"),
    "uniform-fit": lambda: (Uniform(bits=3, scale="fit"),),
    "dorefa-1": lambda: (DoReFa(bits=1),),
    "pact-channel": lambda: (PACT(bits=3, group="channel"),),
    "lsq-channel": lambda: (LSQ(bits=3, group="channel", lr=0.1),),
    "lqnets-channel": lambda: (LQNets(bits=3, group="channel"),),
    "dsq-1": lambda: (DSQ(bits=1, lr=1e-2),),
    "slb-1": lambda: (SLB(bits=1, lr=0.05),),
    "lsq+cs": lambda: (ContinuousSparsification(target=0.5), LSQ(bits=2)),
    "bsq+cs": lambda: (ContinuousSparsification(target=0.5), BSQ(bits=4, penalty=0.05, adjustments=3)),
}
NETWORKS = ["linear", "conv2d", "tied"]


def start(rival: str, model: str) -> tuple[nn.Module, Plan, Tensor]:
    """Network, plan and a batch of eight, for runs on two ranks."""
    network = build(model)
    return network, compress(network, *RIVALS[rival](), steps=STEPS), MODELS[model].batch(8)
