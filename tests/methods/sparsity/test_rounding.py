"""What `harden` says: how far the masks are from what they are rounded to, and where a target could not be met."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paretorch import ContinuousSparsification, Plan, compress
from paretorch.errors import ConfigError, MissedTargetWarning, UndecidedWarning
from tests.decisions import decisions


def _settled(s: list[float], target: float | None) -> Plan:
    """A plan over the rows of one layer, at its final temperature, with these decisions."""
    model = nn.Linear(3, len(s), bias=False)
    nn.init.constant_(model.weight, 1.0)
    options = {"target": target, "group": "channel", "final_temperature": 1e4}
    plan = compress(model, ContinuousSparsification(start="uniform", gradient_anneal=0.5, **options), steps=1)
    plan.step()  # the only one, after which the temperature is the final one
    (decision,) = decisions(model)
    decision.data.copy_(torch.tensor(s)[:, None])
    return plan


def _heard(plan: Plan) -> list[str]:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        plan.harden()
    return [str(one.message) for one in heard if issubclass(one.category, UndecidedWarning)]


@pytest.mark.parametrize("target", [None, 0.5])
def test_masks_that_are_as_they_will_be_are_rounded_in_silence(target: float | None) -> None:
    assert _heard(_settled([1.0, -1.0, 1.0, -1.0], target)) == []


def test_rows_that_rounding_turns_over_are_counted() -> None:
    plan = _settled([1.0, 0.5, 0.7, -1.0], 0.5)
    assert plan.metrics()["sparsity"] == 0.25
    (message,) = _heard(plan)
    assert "on average 0.250 away" in message, "one row of four goes, which was wide open"
    assert plan.metrics()["sparsity"] == 0.5


def test_a_soft_row_is_told_by_its_distance() -> None:
    plan = _settled([1.0, 0.0, 1.0, -1.0], 0.25)
    (message,) = _heard(plan)
    assert "on average 0.125 away" in message, "half of one row of four"


def _by_half(name: str, weight: Tensor) -> Tensor:
    return (torch.arange(weight.numel()) >= weight.numel() // 2).long().view(weight.shape)


def test_a_target_between_groups_is_told() -> None:
    plan = compress(nn.Linear(4, 4), ContinuousSparsification(target=0.3, group=_by_half), steps=2)
    with pytest.warns(MissedTargetWarning, match=r"target=0\.3: 0\.5000 is dropped, since groups go or stay whole"):
        plan.harden()


def test_a_target_within_a_group_is_met_in_silence() -> None:
    plan = compress(nn.Linear(4, 4), ContinuousSparsification(target=0.52, group=_by_half), steps=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", MissedTargetWarning)
        plan.harden()
    assert plan.metrics()["sparsity"] == 0.5


@pytest.mark.parametrize("options", [{"count": "macs"}, {"multiple": 4}])
def test_what_only_coupled_channels_have_needs_an_example(options: dict[str, Any]) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))
    with pytest.raises(ConfigError, match="give compress an example= of the inputs"):
        compress(model, ContinuousSparsification(target=0.5, group="channel", **options), steps=2)
