"""Students of their own dense network train in evaluation mode, without dropout."""

from typing import Any

import pytest
import torch
from torch import nn

from paretorch import ContinuousSparsification, compress
from paretorch.methods.sparsity.rivals import ST3, GradualMagnitude


@pytest.mark.parametrize(
    "method",
    [ST3(target=0.5), GradualMagnitude(target=0.5, every=1), ContinuousSparsification(target=0.5)],
    ids=["st3", "gradual", "continuous"],
)
def test_trains_in_evaluation_mode(method: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 4)).eval()
    plan = compress(model, method, steps=4)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.1)
    x, before = torch.randn(16, 8), model[0].weight.detach().clone()
    for _ in range(3):
        model(x).square().mean().backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
    assert not torch.equal(model[0].weight, before)
