"""The user's loop, as short as users write it, and what it leaves: every number of the trajectory."""

import torch
from torch import Tensor, nn

from paretorch import Plan


def optimizer_of(plan: Plan) -> torch.optim.Optimizer:
    return torch.optim.SGD(plan.param_groups(weight_decay=1e-3), lr=0.05, momentum=0.9)


def train(
    model: nn.Module,
    plan: Plan,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    steps: int,
    parts: int = 1,
    mixed: bool = False,
) -> list[float]:
    """Some steps on one batch, in `parts` accumulated pieces, the forward pass in bf16 where `mixed`; returns the losses."""
    losses = []
    for _ in range(steps):
        total = 0.0
        for piece, target in zip(x.chunk(parts), (torch.arange(len(x))).chunk(parts), strict=True):
            with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
                output = model(piece)
            loss = nn.functional.cross_entropy(output.float(), target % output.shape[1]) / parts
            loss.backward()
            total += loss.item()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
