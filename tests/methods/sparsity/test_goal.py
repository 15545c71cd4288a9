"""What decides how many weights Continuous Sparsification drops and how many bits SMOL keeps: a target, a budget, or a start or a price that were chosen."""

import pytest
import torch
from torch import nn

import paretorch as pt
from paretorch import SMOL, ContinuousSparsification
from paretorch.errors import ConfigError


def test_something_says_how_many_weights_to_drop() -> None:
    torch.manual_seed(0)
    model = nn.Linear(40, 40)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for method in (ContinuousSparsification(), ContinuousSparsification(anneal=1.0), ContinuousSparsification(lr=1.0)):
        with pytest.raises(ConfigError, match=r"give target=, such as 0\.95, or compress a budget=, or choose init="):
            pt.compress(model, SMOL(target_bits=2.0), method, steps=5)
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("method", "budget"),
    [
        (ContinuousSparsification(), 2000),
        (ContinuousSparsification(target=0.0), None),
        (ContinuousSparsification(init=-0.2), None),
        (ContinuousSparsification(penalty=1e-4), None),
        (ContinuousSparsification(overrides={"weight": {"init": -0.2}}), None),
        (ContinuousSparsification.as_printed(0.0), None),
        (ContinuousSparsification.as_printed(0.0, penalty=0.0), None),
    ],
)
def test_what_is_chosen_says_how_many_weights_to_drop(method: ContinuousSparsification, budget: int | None) -> None:
    plan = pt.compress(nn.Linear(40, 40), method, steps=5, budget=budget)
    assert "temperature" in plan.metrics()


def test_a_better_error_comes_before_the_missing_target() -> None:
    with pytest.raises(ConfigError, match="matches nothing"):
        pt.compress(nn.Linear(4, 4), ContinuousSparsification(exclude="haed"), steps=5)


@pytest.mark.parametrize("method", [SMOL(), SMOL(group="channel", scale="auto"), SMOL(allowed_bits=(2, 4))])
def test_something_says_how_many_bits_to_keep(method: SMOL) -> None:
    model = nn.Linear(40, 40)
    with pytest.raises(
        ConfigError, match=r"SMOL has nothing to say how many bits to keep: give target_bits=, such as 4\.0"
    ):
        pt.compress(model, method, steps=5)
    assert list(model.state_dict()) == ["weight", "bias"]
    with pytest.raises(ConfigError, match="SMOLActivations has nothing to say"):
        pt.compress(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), pt.SMOLActivations(), steps=5, example=torch.ones(2, 4))


@pytest.mark.parametrize(
    ("method", "budget"),
    [
        (SMOL(), 2000),
        (SMOL(penalty=1e-4), None),
        (SMOL(init_bits=4.0), None),
        (SMOL(allowed_bits=(4,)), None),
        (SMOL(format="int8"), None),
        (SMOL.as_printed(1e-6), None),
    ],
)
def test_what_is_chosen_says_how_many_bits_to_keep(method: SMOL, budget: int | None) -> None:
    assert pt.compress(nn.Linear(40, 40), method, steps=5, budget=budget).metrics()["bits"] > 0
