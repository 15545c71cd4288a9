"""After `harden(optimizer)` dropped weights are zero: decay gives them no gradient, so AvaGrad's norm leaves them out."""

import pytest
import torch
from torch import nn

import paretorch as pt


@pytest.mark.filterwarnings("ignore")
def test_decay_does_not_bring_dropped_weights_into_the_norm() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(20, 30)), torch.randn(8, 20)
    plan = pt.compress(model, pt.ContinuousSparsification(target=0.9), steps=5)
    optimizer = pt.AvaGrad(plan.param_groups(weight_decay=5e-4), eps=1e-8)
    for step in range(10):
        if step == 5:
            with plan.hardened():
                rounded = model(x).detach()
            plan.harden(optimizer)
            torch.testing.assert_close(model(x).detach(), rounded)
        model(x).square().sum().backward()
        optimizer.step()
        if step < 5:
            plan.step()
        optimizer.zero_grad()
    (weight,) = (p for p in optimizer.param_groups[0]["params"] if p.shape == (30, 20))
    moving = optimizer.state[weight]["exp_avg_sq"] > 0
    assert int(moving.sum()) == 60
    assert int((weight != 0).sum()) == 60
