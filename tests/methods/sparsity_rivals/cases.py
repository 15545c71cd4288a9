"""The pruning rivals that take the contract: each of the registry, variants, and which networks they take it on."""

from collections.abc import Callable

from torch import Tensor, nn

from paretorch import SMOL, Plan, compress
from paretorch.core.method import Method
from paretorch.methods.sparsity.rivals import (
    DNW,
    ST3,
    STR,
    GradualMagnitude,
    HardConcrete,
    MagnitudePruning,
    StochasticSparsification,
)
from tests.contract.cases import MODELS, STEPS, build, rivals

RIVALS: dict[str, Callable[[], tuple[Method, ...]]] = {
    **rivals("sparsity"),
    "mp-layer": lambda: (MagnitudePruning(target=0.6, scope="layer"),),
    "mp-channel": lambda: (MagnitudePruning(target=0.5, group="channel"),),
    "gmp-block": lambda: (GradualMagnitude(target=0.5, begin=0.2, end=0.9, every=1, group=(2, 1), scope="layer"),),
    "st3-sigma": lambda: (ST3(target=0.6, sigma=True, rescale=False),),
    "st3-layer": lambda: (ST3(target=0.6, scope="layer"),),
    "dnw-global": lambda: (DNW(target=0.6, scope="global"),),
    "str-decay": lambda: (STR(init=-3.0, decay=1e-2),),
    "str-channel": lambda: (STR(target=0.6, init=-3.0, group="channel"),),
    "l0-penalty": lambda: (HardConcrete(penalty=0.01, open_at_start=0.09, lr=0.5),),
    "stochastic-free": lambda: (StochasticSparsification(lr=1.0),),
    "mp+smol": lambda: (MagnitudePruning(target=0.5), SMOL(target_bits=1.5)),
    "gmp+smol": lambda: (GradualMagnitude(target=0.5, every=1), SMOL(target_bits=1.5)),
    "dnw+smol": lambda: (DNW(target=0.5), SMOL(target_bits=1.5, group="channel")),
    "l0+smol": lambda: (HardConcrete(target=0.5), SMOL(penalty=1e-3)),
    "stochastic+smol": lambda: (StochasticSparsification(target=0.5, lr=1.0), SMOL(target_bits=1.5)),
}
NETWORKS = ["linear", "conv2d", "tied"]


def start(rival: str, model: str) -> tuple[nn.Module, Plan, Tensor]:
    """Network, plan and a batch of eight, for runs on two ranks."""
    network = build(model)
    return network, compress(network, *RIVALS[rival](), steps=STEPS), MODELS[model].batch(8)
