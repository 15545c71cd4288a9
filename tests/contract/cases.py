"""What takes the contract: every method of the registry, with variants, and every kind of layer in MODELS."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import pytest
import torch
from _pytest.mark import ParameterSet
from torch import Tensor, nn

from paretorch import SMOL, ContinuousSparsification, Plan, compress
from paretorch.core.method import Method
from paretorch.methods.registry import Kind, entries

STEPS = 12


def _by_column(_: str, weight: Tensor) -> Tensor:
    return torch.arange(weight.numel()).view(weight.shape) % 5


METHODS: dict[str, Callable[[], tuple[Method, ...]]] = {
    "sparsity": lambda: (ContinuousSparsification(target=0.6),),
    "sparsity-trained": lambda: (ContinuousSparsification(target=0.6, start="saliency", final_temperature=1.0),),
    "sparsity-printed": lambda: (ContinuousSparsification(init=-0.2, penalty=1e-4, anneal=1.0),),
    "sparsity-channel": lambda: (ContinuousSparsification(target=0.5, group="channel"),),
    "sparsity-block": lambda: (ContinuousSparsification(target=0.5, group=(2, 1), gate="erf"),),
    "sparsity-callable": lambda: (ContinuousSparsification(target=0.5, group=_by_column, gate="arctan"),),
    "precision": lambda: (SMOL(target_bits=3.0, init_bits=6.0),),
    "precision-printed": lambda: (SMOL(penalty=1e-3, lr=0.05),),
    "precision-channel": lambda: (SMOL(target_bits=2.5, group="channel", scale="auto"),),
    "precision-layer": lambda: (SMOL(penalty=1e-2, group="layer", lr=0.1),),
    "precision-network": lambda: (SMOL(penalty=1e-2, group="network", lr=0.1),),
    "precision-zero": lambda: (SMOL(target_bits=1.5, zero_precision=True, scale="auto"),),
    # Neither steeper nor sooner, in so few steps: a steep gate makes much of the last digits, in which ranks and compilers differ.
    "both": lambda: (ContinuousSparsification(target=0.5, final_temperature=50.0, anneal=0.75), SMOL(target_bits=1.5)),
    "both-mixed": lambda: (
        ContinuousSparsification(target=0.4, init=-0.1, gate="algebraic"),
        SMOL(target_bits=1.2, group="channel", zero_precision=True),
    ),
    "both-trained": lambda: (
        ContinuousSparsification(target=0.5, start="saliency", final_temperature=4.0, anneal=0.9),
        SMOL(target_bits=1.5),
    ),
}

# Whole channels, coupled through the network: where an example is given, on layers whose channels can go.
COUPLED: dict[str, Callable[[], tuple[Method, ...]]] = {
    "coupled": lambda: (ContinuousSparsification(target=0.4, group="channel"),),
    "coupled-trained": lambda: (ContinuousSparsification(target=0.4, group="channel", start="saliency"),),
    "coupled-both": lambda: (ContinuousSparsification(target=0.3, group="channel", init=-0.1), SMOL(target_bits=3.0)),
}
WITH_CHANNELS = ["linear", "conv1d", "conv2d", "transposed"]

# Of the methods that CS and SMOL are compared with, what the dataclasses of a kind all have.
_TARGETS: dict[Kind, dict[str, float]] = {"sparsity": {"target": 0.6}, "precision": {"bits": 2}}
_NO_RIVALS = {"cs", "smol", "smol-printed", "given"}  # `given` needs the file of another run


def rivals(kind: Kind) -> dict[str, Callable[[], tuple[Method, ...]]]:
    """One case for each rival of a kind in the method registry, by its name there."""

    def case(name: str) -> Callable[[], tuple[Method, ...]]:
        entry = entries(kind)[name]
        return lambda: (entry.method(**{**_TARGETS[kind], **entry.trial}),)

    return {name: case(name) for name in entries(kind) if name not in _NO_RIVALS}


@dataclass(frozen=True)
class Model:
    """A tiny network with one kind of layer, and a batch for it; `batch(n)` has n samples in the first dimension."""

    build: Callable[[], nn.Module]
    batch: Callable[[int], Tensor]


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6, num_layers=2, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x + self.attention(x, x, x, need_weights=False)[0]).mean(1))


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.mix = nn.Linear(6, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(self.embed(x).mean(1))))


def _linear() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3))


def _conv1d() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(3, 6, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(6, 3)
    )


def _conv2d() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3, groups=2, padding=1),
        nn.Flatten(),
        nn.Linear(96, 3),
    )


def _transposed() -> nn.Module:
    return nn.Sequential(nn.ConvTranspose2d(3, 4, 2, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))


def _embedding() -> nn.Module:
    return nn.Sequential(nn.Embedding(11, 6), nn.Flatten(), nn.Linear(18, 3))


def _normal(*shape: int) -> Callable[[int], Tensor]:
    return lambda n: torch.randn(n, *shape, generator=torch.Generator().manual_seed(7))


def _tokens(length: int) -> Callable[[int], Tensor]:
    return lambda n: torch.randint(0, 11, (n, length), generator=torch.Generator().manual_seed(7))


MODELS: dict[str, Model] = {
    "linear": Model(_linear, _normal(6)),
    "conv1d": Model(_conv1d, _normal(3, 8)),
    "conv2d": Model(_conv2d, _normal(3, 4, 4)),
    "transposed": Model(_transposed, _normal(3, 2, 2)),
    "embedding": Model(_embedding, _tokens(3)),
    "lstm": Model(_Recurrent, _normal(5, 4)),
    "attention": Model(_Attention, _normal(5, 8)),
    "tied": Model(_Tied, _tokens(3)),
}


def build(model: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return MODELS[model].build()


def attach(network: nn.Module, method: str, model: str) -> Plan:
    """The plan of a case."""
    example = MODELS[model].batch(2) if method in COUPLED else None
    return compress(network, *{**METHODS, **COUPLED}[method](), steps=STEPS, example=example)


def start(method: str, model: str) -> tuple[nn.Module, Plan, Tensor]:
    """Network, plan and a batch of eight, for runs on two ranks."""
    network = build(model)
    return network, attach(network, method, model), MODELS[model].batch(8)


def loss_of(output: Tensor) -> Tensor:
    """A loss that every output of these networks has: cross entropy against a fixed pattern of classes."""
    return nn.functional.cross_entropy(output.float(), torch.arange(len(output)) % output.shape[1])


Pair = tuple[str, str]


def combinations(methods: list[str], models: list[str]) -> list[Pair]:
    return [(method, model) for method in methods for model in models]


def by_turns(methods: list[str], models: list[str], each: int = 1) -> list[Pair]:
    """Every method on so many models, which take turns."""
    return [(method, models[(each * i + k) % len(models)]) for i, method in enumerate(methods) for k in range(each)]


def only_in_contract(every: Sequence[Pair], but: Collection[Pair]) -> list[ParameterSet]:
    """All the cases, those that are not in `but` for `make contract` alone."""
    return [pytest.param(*case, marks=[] if case in but else pytest.mark.contract) for case in every]


EVERY = combinations(list(METHODS), list(MODELS))
# What `make test` has of them: both methods together on every kind of layer, every other method on two.
COVER = combinations(["both"], list(MODELS)) + by_turns(list(METHODS), list(MODELS), 2)
# Of coupled channels: every way, every kind of layer.
COUPLED_COVER = by_turns([*COUPLED, "coupled"], WITH_CHANNELS)
