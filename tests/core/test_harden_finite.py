"""Nothing is rounded where a weight or a decision is not finite: model, plan and optimizer stay as they are."""

import copy
import math
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paretorch import SMOL, ContinuousSparsification, Plan, SMOLActivations, compress
from paretorch.core.method import Method
from paretorch.errors import DivergenceError
from paretorch.methods.precision.rivals import LSQ
from paretorch.methods.sharing import SoftSharing
from paretorch.methods.sparsity.rivals import AMC, HardConcrete, MagnitudePruning, harden_best, harden_searched
from tests.core.tiny import batch, train
from tests.decisions import noting, relaxations, relaxed

METHODS: dict[str, Callable[[], tuple[Method, ...]]] = {
    "masks": lambda: (ContinuousSparsification(target=0.5),),
    "magnitude": lambda: (MagnitudePruning(target=0.5),),
    "channels": lambda: (ContinuousSparsification(target=0.3, group="channel"), SMOL(target_bits=3.0)),
    "both": lambda: (ContinuousSparsification(target=0.5), SMOL(target_bits=1.5, zero_precision=True)),
    "network": lambda: (SMOL(target_bits=2.0, group="network"),),
    "lsq": lambda: (LSQ(bits=2),),
    "activations": lambda: (SMOL(target_bits=2.0), SMOLActivations(target_bits=3.0, group="layer")),
    "shared": lambda: (SoftSharing(templates=2), SMOL(target_bits=3.0)),
}


def _net() -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()]
    layers += [nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1), nn.Flatten(), nn.Linear(54, 3)]
    return nn.Sequential(*layers)


def _trained(*methods: Method) -> tuple[Plan, torch.optim.Optimizer]:
    plan = compress(_net(), *methods, steps=4, example=batch(2))
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.01, momentum=0.9)
    train(plan, optimizer, batch(), 2)
    return plan, optimizer


def _state(plan: Plan, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return copy.deepcopy({"model": plan.model.state_dict(), "plan": plan.state_dict(), "own": optimizer.state_dict()})


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) and torch.equal(a.isnan(), b.isnan())
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b)


def _refused(plan: Plan, optimizer: torch.optim.Optimizer, match: str, harden: Callable[[], object]) -> None:
    before = _state(plan, optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is said of a rounding that does not take place
        with pytest.raises(DivergenceError, match=match):
            harden()
    assert not plan.is_hard
    assert _same(_state(plan, optimizer), before)


@pytest.mark.parametrize("value", [math.nan, -math.inf])
@pytest.mark.parametrize("name", list(METHODS))
def test_a_weight_that_is_not_finite(name: str, value: float) -> None:
    plan, optimizer = _trained(*METHODS[name]())
    name, own = list(relaxed(plan.model).items())[-1]
    weight = own.latent
    kept = weight.detach().clone()
    weight.data.flatten()[-1] = value
    match = rf"^{re.escape(name)} has values that are not finite: go back"
    _refused(plan, optimizer, match, lambda: plan.harden(optimizer))
    _refused(plan, optimizer, match, plan.hardened().__enter__)
    _refused(plan, optimizer, match, plan.finalize)
    weight.data.copy_(kept)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan.harden(optimizer)
    assert plan.is_hard


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", list(METHODS))
def test_a_decision_that_is_not_finite(name: str, value: float) -> None:
    methods, noted = zip(*map(noting, METHODS[name]()), strict=True)
    plan, optimizer = _trained(*methods)
    for (term,) in noted:
        last = term.decisions()[-1]
        kept = last.detach().clone()
        last.data.flatten()[-1] = value
        first = next(site for site, r in zip(term.sites, term.relaxations, strict=True) if r.decision is last)
        match = rf"^{first.name} has {term.method.kind} decisions that are not finite"
        _refused(plan, optimizer, match, lambda: plan.harden(optimizer))
        last.data.copy_(kept)


def test_a_learned_range_that_is_not_finite() -> None:
    plan, optimizer = _trained(*METHODS["activations"]())
    (alpha, _), *_ = (one for own in relaxations(plan.model) for one in own.trained())
    alpha.data.fill_(math.nan)
    _refused(plan, optimizer, r"^2 has learned ranges that are not finite", lambda: plan.harden(optimizer))


def test_a_budget_is_not_tried_either() -> None:
    plan = compress(_net(), ContinuousSparsification(), SMOL(), steps=4, budget=2_000)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.01, momentum=0.9)
    train(plan, optimizer, batch(), 2)
    relaxed(plan.model)["3.weight"].latent.data[0, 0, 0, 0] = math.nan
    _refused(plan, optimizer, r"^3\.weight has values", lambda: plan.harden(optimizer))


def test_neither_draws_nor_searches_begin() -> None:
    plan, optimizer = _trained(HardConcrete(target=0.5))
    relaxed(plan.model)["4.weight"].latent.data[0, 0] = math.nan
    _refused(plan, optimizer, r"^4\.weight has values", lambda: harden_best(plan, lambda _: 0.0, optimizer=optimizer))
    plan, optimizer = _trained(AMC(target=0.5))
    relaxed(plan.model)["4.weight"].latent.data[0, 0] = math.nan
    _refused(plan, optimizer, r"^4\.weight has values", lambda: harden_searched(plan, lambda _: 0.0, batch(2)))
