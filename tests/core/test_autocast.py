"""A loop that is in autocast as a whole steps, measures and rounds its plan in fp32 all the same."""

import pytest
import torch
from torch import Tensor, nn

from paretorch import ContinuousSparsification, SoftSharing, compress
from paretorch.core.method import Method

METHODS: dict[str, Method] = {
    "channels": ContinuousSparsification(target=0.37, group="channel", lr=1.0),
    "sharing": SoftSharing(templates=2, recurrence=0.1),
}


def _life(method: Method, mixed: bool) -> tuple[dict[str, Tensor], dict[str, float]]:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(300, 300) for _ in range(4)))
    x = torch.randn(4, 300, generator=torch.Generator().manual_seed(1))
    plan = compress(model, method, steps=6, example=x)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.05)
    for _ in range(6):
        model(x).square().mean().backward()
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            optimizer.step()
            plan.step()
        optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        plan.harden(optimizer)
        return model.state_dict(), plan.metrics()


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
def test_it_changes_nothing(method: Method) -> None:
    (own, numbers), (usual, expected) = (_life(method, mixed) for mixed in (True, False))
    assert numbers == expected
    assert all(torch.equal(own[key], usual[key]) for key in usual)
