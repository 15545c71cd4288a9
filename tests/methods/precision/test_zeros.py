"""While precisions are searched for, weights that would be rounded to zero count no bits."""

from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import paretorch as pt
from paretorch.core.groups import Group
from paretorch.core.method import Term
from paretorch.core.plan import Plan
from paretorch.methods.precision.grid import real_bits
from paretorch.methods.precision.levels import least_bits, raise_scales
from paretorch.methods.precision.noisy import Precision


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(216, 10))


def search(plan: Plan, steps: int) -> list[float]:
    """Bits as they are logged, step by step."""
    torch.manual_seed(2)
    x, y = torch.randn(32, 1, 8, 8), torch.randint(0, 10, (32,))
    optimizer, found = torch.optim.SGD(plan.param_groups(), lr=0.05, momentum=0.9), []
    for _ in range(steps):
        F.cross_entropy(plan.model(x), y).backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
        found.append(float(plan.metrics()["bits"]))
    return found


def counted(model: nn.Module) -> float:
    """The definition, weight by weight: no bits where |w| ≤ |w − q| for the nearer value q at distance 2^k 2^(1−p)/2."""
    total, number = 0.0, 0
    for layer in (model[0], model[4]):
        weight: Tensor = layer.paretorch_weight.latent.detach()
        own = layer.paretorch_weight.precision
        p = own.grouping.expand(real_bits(own.decision.detach())).expand(weight.shape)
        value = 2.0 ** (1.0 - p) * own.scale  # the least one with p bits
        total += float(torch.where(weight.abs() <= (weight.abs() - value).abs(), 0.0, p).sum())
        number += weight.numel()
    return total / number


@pytest.mark.parametrize("group", ["weight", "channel", "layer", (2, 1)])
def test_metrics_count_no_bits_for_zeros(group: Group) -> None:
    model = net()
    plan = pt.compress(model, pt.SMOL(penalty=1e-2, init_bits=3.0, lr=0.1, group=group, zero_precision=True), steps=8)
    assert search(plan, 8)[-1] == pytest.approx(counted(model), rel=1e-5)
    plain = pt.compress(net(), pt.SMOL(penalty=1e-2, init_bits=3.0, lr=0.1, group=group), steps=8)
    assert search(plain, 8)[-1] > 1.1 * counted(model)


@pytest.mark.parametrize("target", [0.5, 1.0, 1.7])
def test_the_search_itself_comes_to_the_target(target: float) -> None:
    plan = pt.compress(net(), pt.SMOL(target_bits=target, zero_precision=True), steps=300)
    assert search(plan, 300)[-1] == pytest.approx(target, rel=0.35)
    assert float(plan.metrics()["bit_price"]) < 1.0, "a price that rises without end says that zeros were not counted"
    plan.harden()
    assert float(plan.metrics()["bits"]) == pytest.approx(target, abs=0.05)


def test_what_masks_drop_counts_no_bits_either() -> None:
    model = net()
    methods = pt.ContinuousSparsification(target=0.5), pt.SMOL(penalty=1e-2, init_bits=3.0, zero_precision=True)
    plan = pt.compress(model, *methods, steps=8)
    found = search(plan, 8)[-1]
    kept = torch.cat([layer.paretorch_weight.survives().flatten() for layer in (model[0], model[4])])
    assert 0.0 < found <= 3.0 * float(kept.mean())
    assert found < counted(model)


class _Noting(pt.SMOL):
    """Leaves the rounding to the test."""

    terms: ClassVar[list[Term]] = []

    def round(self, term: Term, factor: float) -> None:
        self.terms.append(term)


@pytest.mark.parametrize("share", [0.5, 0.4, 0.3, 0.2, 0.1])
def test_scales_grow_layer_by_layer_until_there_is_room(share: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(32, 32, bias=False) for _ in range(8)))
    pt.compress(model, _Noting(target_bits=1.0, zero_precision=True), steps=4).harden()
    term = _Noting.terms.pop()
    members = [r for r in term.relaxations if isinstance(r, Precision)]
    budget = share * term.weights
    before = [int(r.power) for r in members]
    raise_scales(term, members, budget)
    assert 0 <= budget - least_bits(term, members) < 32 * 32, "less than a layer is given away"
    assert all(int(r.power) >= power for r, power in zip(members, before, strict=True))
