"""Tiny networks with activation modules, batches for them, and the user's loop."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from paretorch import SMOL, Plan, SMOLActivations, compress
from paretorch.core.method import Method
from paretorch.methods.precision.activations_fixed import FixedActivations
from paretorch.methods.precision.rivals import PACTActivations
from tests.contract.loop import optimizer_of, train
from tests.contract.promises import Run

STEPS = 12

METHODS: dict[str, Callable[[], tuple[Method, ...]]] = {
    "position": lambda: (SMOLActivations(target_bits=3.0, init_bits=6.0),),
    "channel": lambda: (SMOLActivations(target_bits=4.0, group="channel"),),
    "layer": lambda: (SMOLActivations(penalty=1e-3, group="layer", lr=0.05),),
    "network": lambda: (SMOLActivations(penalty=1e-3, group="network", lr=0.05),),
    "block": lambda: (SMOLActivations(target_bits=4.0, group=(2,), allowed_bits=(1, 2, 4, 8)),),
    "beside": lambda: (SMOL(target_bits=3.0), SMOLActivations(target_bits=4.0, group="channel")),
    "fixed": lambda: (FixedActivations(),),
    "pact": lambda: (PACTActivations(bits=3, alpha=2.0),),
}


class Residual(nn.Module):
    """Convolutions, a shared ReLU at two places of one shape, a tanh and a sigmoid."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.tanh = nn.Tanh()
        self.head = nn.Sequential(nn.Linear(4, 6), nn.Sigmoid(), nn.Linear(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.first(x))
        x = self.relu(x + self.second(x))
        return self.head(self.tanh(x.mean((2, 3))))


def build(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return Residual()


def batch(n: int = 6) -> Tensor:
    return torch.randn(n, 2, 4, 4, generator=torch.Generator().manual_seed(7))


def attach(network: nn.Module, method: str) -> Plan:
    return compress(network, *METHODS[method](), steps=STEPS, example=batch(2))


def started(method: str, steps: int = 0, seed: int = 0) -> Run:
    network = build(seed)
    plan = attach(network, method)
    optimizer = optimizer_of(plan)
    train(network, plan, optimizer, batch(), steps)
    return network, plan, optimizer, batch()


def run_to(method: str, phase: str) -> tuple[nn.Module, Plan, torch.optim.Optimizer]:
    network, plan, optimizer, x = started(method, 0 if phase == "start" else 5)
    if phase == "hard":
        plan.harden(optimizer)
        train(network, plan, optimizer, x, 2)
    return network, plan, optimizer
