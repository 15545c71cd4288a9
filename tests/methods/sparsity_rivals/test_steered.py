"""Rivals whose λ is steered: the search itself gets to the target, whatever it is."""

import math

import pytest
import torch
from torch import nn

from paretorch import Plan, compress
from paretorch.errors import ConfigError
from paretorch.methods.sparsity.rivals import STR, HardConcrete, StochasticSparsification
from tests.decisions import decisions

METHODS = [HardConcrete, StochasticSparsification, STR]


def trained(method: object, steps: int = 300) -> Plan:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    plan = compress(model, method, steps=steps)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.05, momentum=0.9)
    x = torch.randn(512, 16)
    y = x[:, :4].argmax(1)
    for _ in range(steps):
        rows = torch.randint(0, 512, (32,))
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
    return plan


def kept(plan: Plan) -> float:
    """The share of weights that is kept now, or is to be expected."""
    if not isinstance(plan.methods()[0], HardConcrete):
        return 1 - plan.metrics()["sparsity"]
    s = torch.cat([one.detach().flatten() for one in decisions(plan.model)])
    return float(torch.sigmoid(s - 2 / 3 * math.log(0.1 / 1.1)).mean())


@pytest.mark.parametrize("target", [0.3, 0.9])
@pytest.mark.parametrize("method", METHODS)
def test_the_search_ends_at_the_target(method: type, target: float) -> None:
    plan = trained(method(target=target, steered=True))
    assert kept(plan) == pytest.approx(1 - target, abs=0.05)
    assert plan.metrics()["price"] >= 0
    plan.harden()
    assert plan.metrics()["sparsity"] == pytest.approx(target, abs=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_a_constant_price_knows_no_target(method: type) -> None:
    ends = [trained(method(target=target), steps=60) for target in (0.3, 0.9)]
    shares = [kept(plan) for plan in ends]
    assert shares[0] == shares[1]
    assert "price" not in ends[0].metrics()


@pytest.mark.parametrize("method", METHODS)
def test_nothing_is_steered_to_no_target(method: type) -> None:
    with pytest.raises(ConfigError, match="steered=True needs a target"):
        compress(nn.Linear(4, 4), method(steered=True), steps=10)
