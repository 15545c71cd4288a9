"""An optimizer may be made of all parameters: those of the plan have no gradients of their own."""

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from paretorch import Plan, compress

from .tiny import batch, both, small_net, train

ALL = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-4),
    "adam": torch.optim.Adam,
    "fused adam": lambda p: torch.optim.Adam(p, fused=True),
}


@contextmanager
def _silence() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def _begun(steps: int = 8) -> tuple[nn.Module, Plan, torch.optim.Optimizer]:
    model = small_net()
    plan = compress(model, *both(), steps=steps)
    return model, plan, torch.optim.SGD(plan.param_groups(), lr=0.05, momentum=0.9)


@pytest.mark.parametrize("make", ALL.values(), ids=ALL.keys())
def test_an_optimizer_of_all_parameters_passes_over_the_decisions(make: Callable[..., torch.optim.Optimizer]) -> None:
    first, plan, _ = _begun()
    second, other, _ = _begun()
    second.load_state_dict(first.state_dict())
    with _silence():
        train(plan, make(first.parameters()), batch(), 6)
        train(other, make(other.param_groups()[0]["params"]), batch(), 6)
    for key, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[key]), key


def test_one_of_the_weights_is_not() -> None:
    _, plan, mine = _begun(steps=20)
    with _silence():
        train(plan, mine, batch(), 20)


def _preview(model: nn.Module, plan: Plan) -> nn.Module:
    with plan.hardened():
        return model


def _load(model: nn.Module, plan: Plan) -> nn.Module:
    state, mine = copy.deepcopy(model.state_dict()), plan.state_dict()
    model.load_state_dict(state)
    plan.load_state_dict(mine)
    return model


def _swap(model: nn.Module, plan: Plan) -> nn.Module:
    """What an average of the weights does around an evaluation."""
    own = [parameter.detach().clone() for parameter in model.parameters()]
    with torch.no_grad():
        for factor in (0.5, 1.0):
            for parameter, value in zip(model.parameters(), own, strict=True):
                parameter.copy_(factor * value)
    return model


BETWEEN: dict[str, Callable[[nn.Module, Plan], nn.Module]] = {
    "preview": _preview,
    "load": _load,
    "swap": _swap,
    "copy": lambda model, plan: copy.deepcopy(model),
    "double": lambda model, plan: model.double().float(),
}


@pytest.mark.filterwarnings("ignore::paretorch.errors.MissedTargetWarning")
@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN.keys())
def test_nor_is_what_the_plan_and_its_users_do_between_steps(between: Callable[[nn.Module, Plan], nn.Module]) -> None:
    model, plan, mine = _begun()
    train(plan, mine, batch(), 3)
    model = between(model, plan)
    plan = Plan.of(model)
    with _silence():
        train(plan, torch.optim.SGD(plan.param_groups(), lr=0.05), batch(), 3)
