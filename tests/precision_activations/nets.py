"""Tiny networks with activation modules, batches for them, and the user's loop."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from paretorch import SMOL, Plan, SMOLActivations, compress
from paretorch.core.method import Method
from paretorch.precision.activations_fixed import FixedActivations
from paretorch.precision.rivals import PACTActivations

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


def optimizer_of(plan: Plan) -> torch.optim.Optimizer:
    return torch.optim.SGD(plan.param_groups(weight_decay=1e-3), lr=0.05, momentum=0.9)


def train(
    model: nn.Module, plan: Plan, optimizer: torch.optim.Optimizer, x: Tensor, steps: int, parts: int = 1
) -> list[float]:
    losses = []
    for _ in range(steps):
        total = 0.0
        for piece, target in zip(x.chunk(parts), torch.arange(len(x)).chunk(parts), strict=True):
            loss = nn.functional.cross_entropy(model(piece), target % 3) / parts
            loss.backward()
            total += loss.item()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


def run_to(method: str, phase: str) -> tuple[nn.Module, Plan, torch.optim.Optimizer]:
    network = build()
    plan = attach(network, method)
    optimizer = optimizer_of(plan)
    if phase != "start":
        train(network, plan, optimizer, batch(), 5)
    if phase == "hard":
        plan.harden(optimizer)
        train(network, plan, optimizer, batch(), 2)
    return network, plan, optimizer


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
