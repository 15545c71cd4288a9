"""Going on from a state: what is the same plan, and what of the decisions' optimizers goes over."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from paretorch import ContinuousSparsification, Plan, compress
from paretorch.core.method import Method
from paretorch.core.step.optimizers import optimizer_of
from paretorch.errors import ConfigError
from tests.decisions import noting

from .tiny import batch, both, small_net, train

OPTIONS: dict[str, Any] = {
    "predicates in a list": lambda: {"exclude": ["4", lambda name, module: name == "5"]},
    "a function in overrides": lambda: {"overrides": {"4": {"group": lambda name, w: torch.ones_like(w).long()}}},
}


@pytest.mark.parametrize("make", OPTIONS.values(), ids=OPTIONS.keys())
def test_functions_among_options_are_the_same_in_another_process(make: Any) -> None:
    def begun(**options: Any) -> nn.Module:
        model = small_net()
        compress(model, ContinuousSparsification(target=0.5, **{**make(), **options}), steps=4)
        return model

    state = begun().state_dict()
    begun().load_state_dict(state)
    with pytest.raises(ConfigError, match=r"init was 0\.0, is 0\.1"):
        begun(init=0.1).load_state_dict(state)


def test_going_back_to_before_the_first_step_takes_the_same_steps_again() -> None:
    model = small_net()
    plan = compress(model, *both(), steps=8)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.05, momentum=0.9)
    saved = copy.deepcopy((model.state_dict(), plan.state_dict(), optimizer.state_dict()))
    after = []
    for _ in range(2):
        model.load_state_dict(saved[0])
        plan.load_state_dict(saved[1])
        optimizer.load_state_dict(copy.deepcopy(saved[2]))
        train(plan, optimizer, batch(), 3)
        after.append(copy.deepcopy(model.state_dict()))
    assert all(torch.equal(after[0][key], after[1][key]) for key in after[0])


STATES: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "no state of an optimizer": lambda: {"sparsity": {}},
    "of another network": lambda: _state(nn.Sequential(nn.Linear(54, 4), nn.Linear(4, 3))),
}


def _state(model: nn.Module) -> dict[str, Any]:
    plan = compress(model, *both(), steps=8)
    plan.step()
    return plan.state_dict()


@pytest.mark.parametrize("make", STATES.values(), ids=STATES.keys())
def test_what_is_no_state_of_the_plan_is_told(make: Callable[[], Any]) -> None:
    plan = compress(small_net(), *both(), steps=8)
    with pytest.raises(ConfigError, match=r"is no state of .*: give what plan\.state_dict\(\) returned"):
        plan.load_state_dict(make())


def _begun(*methods: Method) -> Plan:
    plan = compress(small_net(), *(methods or both()), steps=8)
    train(plan, torch.optim.SGD(plan.param_groups(), lr=0.05), batch(), 2)
    return plan


def test_how_optimizers_run_is_not_taken_from_a_run_on_another_device() -> None:
    plan, other = _begun(), _begun()
    state = copy.deepcopy(other.state_dict())
    for one in state.values():
        for group in one["param_groups"]:
            there = {"fused": True, "foreach": False, "lr": torch.tensor(0.5)}
            group |= {**there, "capturable": True} if "betas" in group else there
    plan.load_state_dict(state)
    groups = [group for one in plan.state_dict().values() for group in one["param_groups"]]
    assert [(group["fused"], group["foreach"], group["lr"]) for group in groups] == [(False, True, 0.5)] * 2
    assert all(type(group["lr"]) is float for group in groups)
    assert not groups[1]["capturable"]
    train(plan, torch.optim.SGD(plan.param_groups(), lr=0.05), batch(), 1)


def test_what_optimizers_know_goes_with_the_model_to_another_device() -> None:
    methods, noted = zip(*map(noting, both()), strict=True)
    plan = _begun(*methods)
    plan.model.to("meta")
    for (term,) in noted:
        optimizer = optimizer_of(term)
        assert optimizer is not None
        known = [value for one in optimizer.state.values() for value in one.values()]
        assert known
        assert all(value.device.type == "meta" for value in known if value.dim())
