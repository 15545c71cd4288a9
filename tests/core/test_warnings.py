"""Every warning points at the line of the user's code that asked for what it is about, by whatever way it got there."""

import linecache
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

import paretorch as pt
from paretorch.core.compress import compress as from_core
from paretorch.core.method import Method
from paretorch.errors import MissedTargetWarning, PareWarning, UndecidedWarning
from paretorch.methods.sparsity.rivals import DNW, GradualMagnitude, HardConcrete, harden_best


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))


def _plan(*methods: Method) -> pt.Plan:
    return pt.compress(_net(), *methods, steps=4)


def _coarse() -> pt.Plan:
    """Layers that go or stay whole: half of the weights or none, never 30 %."""
    return _plan(pt.ContinuousSparsification(target=0.3, group="layer"))


def _few_bits(mask: Method | None = None) -> pt.Plan:
    return _plan(mask or pt.ContinuousSparsification(target=0.5), pt.SMOL(target_bits=0.3))


def _preview(plan: pt.Plan) -> None:
    with plan.hardened():  # the line
        pass


CASES: dict[str, tuple[type[PareWarning], Callable[[], object]]] = {
    "more templates than layers": (
        PareWarning,
        lambda: pt.compress(_net(), pt.SoftSharing(templates=3), steps=4),  # the line
    ),
    "the same, by the core": (
        PareWarning,
        lambda: from_core(_net(), pt.SoftSharing(templates=3), steps=4),  # the line
    ),
    "undecided": (UndecidedWarning, lambda: _coarse().harden()),  # the line
    "masks miss": (MissedTargetWarning, lambda: _coarse().harden()),  # the line
    "masks miss in a preview": (MissedTargetWarning, lambda: _preview(_coarse())),
    "masks miss at the end": (MissedTargetWarning, lambda: _coarse().finalize()),  # the line
    "bits miss": (MissedTargetWarning, lambda: _few_bits().harden()),  # the line
    "bits miss in a preview": (MissedTargetWarning, lambda: _preview(_few_bits())),
    "bits miss, of drawn masks": (
        MissedTargetWarning,
        lambda: harden_best(_few_bits(HardConcrete(target=0.5)), lambda _: 0.0),  # the line
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_warnings_point_at_the_user(name: str) -> None:
    category, act = CASES[name]
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        act()
    own = [one for one in heard if one.category is category]
    assert own
    for one in own:
        assert one.filename == __file__
        assert "# the line" in linecache.getline(one.filename, one.lineno)


@pytest.mark.parametrize("method", [pt.ContinuousSparsification, GradualMagnitude, DNW])
def test_a_target_that_whole_layers_miss_is_told_by_every_method(method: type[Method]) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    plan = pt.compress(model, method(target=0.5, group="layer"), steps=1)
    with pytest.warns(MissedTargetWarning, match=r"target=0\.5: 0\.\d+ is dropped, since groups go or stay whole"):
        plan.harden()


def test_a_target_that_a_budget_made_up_is_not_missed() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    plan = pt.compress(model, pt.ContinuousSparsification(group="layer"), steps=1, budget=420)
    with warnings.catch_warnings():
        warnings.simplefilter("error", MissedTargetWarning)
        plan.harden()


def test_channels_that_are_only_zeroed_are_said() -> None:
    """Without an example nothing says which channels of other layers go with them, so that none can be removed."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    with pytest.warns(PareWarning, match="sets channels to zero and removes none.*give example=, a batch of inputs"):
        pt.compress(model, pt.ContinuousSparsification(target=0.5, group="channel"), steps=3)
