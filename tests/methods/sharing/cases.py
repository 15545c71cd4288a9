"""Tiny networks with layers of equal shape, and the ways to share that take the contract."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from paretorch import SMOL, ContinuousSparsification, Plan, compress
from paretorch.core.method import Method
from paretorch.methods.sharing import SoftSharing

STEPS = 12

METHODS: dict[str, Callable[[], tuple[Method, ...]]] = {
    "all": lambda: (SoftSharing(),),
    "fewer": lambda: (SoftSharing(templates=2, recurrence=0.01, drops=(0.2, 0.7)),),
    "one": lambda: (SoftSharing(templates=1),),
    "hard": lambda: (SoftSharing(threshold=0.2),),
    "simplex": lambda: (SoftSharing(templates=2, domain="simplex"),),
    "one-hot": lambda: (SoftSharing(templates=2, domain="one-hot"),),
    "adam": lambda: (SoftSharing(optimizer=lambda ps: torch.optim.Adam(ps, lr=0.01)),),
    "masked": lambda: (SoftSharing(templates=2), ContinuousSparsification(target=0.5)),
    "quantized": lambda: (SoftSharing(templates=2), SMOL(target_bits=3.0, init_bits=6.0)),
    "everything": lambda: (
        SoftSharing(templates=2, threshold=0.5, lr=0.02),
        ContinuousSparsification(target=0.4, group="channel"),
        SMOL(
            target_bits=2.0, scale="auto"
        ),  # on the printed grid the noise is larger than these weights, and training diverges
    ),
}


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6, num_layers=3, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.MultiheadAttention(8, 2, batch_first=True)
        self.two = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.one(x, x, x, need_weights=False)[0]
        return self.head((x + self.two(x, x, x, need_weights=False)[0]).mean(1))


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.again = nn.Linear(6, 6)
        self.again.weight = self.first.weight
        self.last = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.again(torch.tanh(self.first(x)))))


def _linear() -> nn.Module:
    body = [layer for _ in range(4) for layer in (nn.Linear(8, 8), nn.Tanh())]
    return nn.Sequential(nn.Linear(6, 8), *body, nn.Linear(8, 3))


def _conv() -> nn.Module:
    body = [layer for _ in range(3) for layer in (nn.Conv2d(5, 5, 3, padding=1), nn.ReLU())]
    return nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), *body, nn.Flatten(), nn.Linear(80, 3))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (_linear, (6,)),
    "conv": (_conv, (3, 4, 4)),
    "lstm": (_Recurrent, (5, 4)),
    "attention": (_Attention, (5, 8)),
    "tied": (_Tied, (6,)),
}


def build(model: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return MODELS[model][0]()


def batch(model: str, n: int = 6) -> Tensor:
    return torch.randn(n, *MODELS[model][1], generator=torch.Generator().manual_seed(7))


def attach(network: nn.Module, method: str) -> Plan:
    return compress(network, *METHODS[method](), steps=STEPS)


def start(method: str, model: str) -> tuple[nn.Module, Plan, Tensor]:
    """Network, plan and a batch of eight, for runs on two ranks."""
    network = build(model)
    return network, attach(network, method), batch(model, 8)


def every() -> list[tuple[str, str]]:
    """Every method on a stack of matrices, all of them together on every kind of layer."""
    return [(method, "linear") for method in METHODS] + [("everything", model) for model in MODELS if model != "linear"]
