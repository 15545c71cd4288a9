"""The rivals that take the contract: each method of the registry that CS and SMOL are compared with, and variants of some."""

from collections.abc import Callable

from torch import Tensor, nn

from paretorch import SMOL, ContinuousSparsification, Plan, compress
from paretorch.core.method import Method
from paretorch.methods.precision.rivals import BSQ, DSQ, LSQ, PACT, SLB, DoReFa, LQNets, Uniform
from paretorch.methods.sparsity.rivals import (
    DNW,
    ST3,
    STR,
    GradualMagnitude,
    HardConcrete,
    MagnitudePruning,
    StochasticSparsification,
)
from tests.contract.cases import MODELS, STEPS, build, by_turns, combinations, only_in_contract, rivals
from tests.contract.loop import optimizer_of, train
from tests.contract.promises import Run

PRUNERS: dict[str, Callable[[], tuple[Method, ...]]] = {
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
QUANTIZERS: dict[str, Callable[[], tuple[Method, ...]]] = {
    **rivals("precision"),
    "uniform-fit": lambda: (Uniform(bits=3, scale="fit"),),
    "dorefa-1": lambda: (DoReFa(bits=1),),
    "pact-channel": lambda: (PACT(bits=3, group="channel"),),
    "lsq-channel": lambda: (LSQ(bits=3, group="channel", lr=0.1),),
    "lqnets-channel": lambda: (LQNets(bits=3, group="channel"),),
    "dsq-1": lambda: (DSQ(bits=1, lr=1e-2),),
    "slb-1": lambda: (SLB(bits=1, lr=0.05),),
    "smol-steps": lambda: (SMOL(target_bits=2.5, group="channel"),),
    "smol-steps+cs": lambda: (ContinuousSparsification(target=0.5), SMOL(target_bits=1.5, group="layer")),
    "lsq+cs": lambda: (ContinuousSparsification(target=0.5), LSQ(bits=2)),
    "bsq+cs": lambda: (ContinuousSparsification(target=0.5), BSQ(bits=4, penalty=0.05, adjustments=3)),
}
RIVALS = {**PRUNERS, **QUANTIZERS}
NETWORKS = ["linear", "conv2d", "tied"]


# The other kinds of layers for quantizers, which tell them apart by their channels and scales.
_OTHERS = [model for model in MODELS if model not in NETWORKS]
# Each on one kind of network, if one is enough.
COVER = by_turns(list(RIVALS), NETWORKS)
CASES = only_in_contract(
    [*combinations(list(RIVALS), NETWORKS), *by_turns(list(QUANTIZERS), _OTHERS, 2)],
    but=[*COVER, *by_turns(list(QUANTIZERS), _OTHERS, 2)[::2]],
)


def started(rival: str, model: str, steps: int = 0, seed: int = 0) -> Run:
    """A run with so many steps behind it."""
    network = build(model, seed)
    plan = compress(network, *RIVALS[rival](), steps=STEPS)
    optimizer, x = optimizer_of(plan), MODELS[model].batch(6)
    train(network, plan, optimizer, x, steps)
    return network, plan, optimizer, x


def start(rival: str, model: str) -> tuple[nn.Module, Plan, Tensor]:
    """Network, plan and a batch of eight, for runs on two ranks."""
    network = build(model)
    return network, compress(network, *RIVALS[rival](), steps=STEPS), MODELS[model].batch(8)
