"""Loops that would use gradients of decisions twice, or scaled, are refused; others run as they did."""

import copy

import pytest
import torch
from torch import Tensor, nn

import paretorch as pt
from paretorch.errors import ConfigError, DivergenceError

INPUTS = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
METHODS = {
    "cs": lambda: pt.ContinuousSparsification(target=0.5),
    "smol": lambda: pt.SMOL(target_bits=2.0),
    "activations": lambda: pt.SMOLActivations(target_bits=3.0),
    "sharing": lambda: pt.SoftSharing(templates=2),
}
every = pytest.mark.parametrize("name", METHODS)
with_gradients = pytest.mark.parametrize("name", ["activations", "sharing"])


def compressed(name: str) -> tuple[nn.Module, pt.Plan]:
    torch.manual_seed(0)
    layers = [module for _ in range(3) for module in (nn.Linear(16, 16), nn.ReLU())]
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), *layers, nn.Linear(16, 4))
    return model, pt.compress(model, METHODS[name](), steps=10, example=INPUTS)


def train(
    model: nn.Module, plan: pt.Plan, optimizer: torch.optim.Optimizer, scaler=None, given=None, steps: int = 3
) -> None:
    for _ in range(steps):
        loss = model(INPUTS).square().mean()
        if scaler is None:
            loss.backward()
            optimizer.step()
            plan.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            plan.step(given)
            scaler.update()
        optimizer.zero_grad()


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def sgd(plan: pt.Plan) -> torch.optim.Optimizer:
    return torch.optim.SGD(plan.param_groups(), lr=0.05)


@every
def test_a_scaler_that_the_plan_is_given_changes_nothing(name: str) -> None:
    found = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=1024.0)):
        model, plan = compressed(name)
        train(model, plan, sgd(plan), scaler, scaler)
        found.append(state(model))
    assert all(torch.equal(value, found[1][key]) for key, value in found[0].items())


@every
def test_a_scaler_that_the_plan_is_not_given_is_refused(name: str) -> None:
    model, plan = compressed(name)
    with pytest.raises(ConfigError, match=r"call plan.step\(scaler\)"):
        train(model, plan, sgd(plan), torch.amp.GradScaler("cpu", init_scale=1024.0))


@every
def test_an_overflow_without_the_scaler_names_it(name: str) -> None:
    model, plan = compressed(name)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    with pytest.raises((ConfigError, DivergenceError), match=r"plan.step\(scaler\)"):
        train(model, plan, sgd(plan), scaler, steps=120)


@with_gradients
def test_an_update_of_the_scaler_before_the_plan_is_refused(name: str) -> None:
    model, plan = compressed(name)
    scaler, optimizer = torch.amp.GradScaler("cpu", init_scale=1024.0), sgd(plan)
    scaler.scale(model(INPUTS).square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    with pytest.raises(ConfigError, match=r"scaler.update\(\) came before"):
        plan.step(scaler)


def test_scalers_that_do_not_matter_are_passed_over() -> None:
    model, plan = compressed("activations")
    train(model, plan, sgd(plan), torch.amp.GradScaler("cpu", enabled=False))
    other = nn.Linear(8, 8)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(other(INPUTS).square().mean()).backward()
    scaler.step(torch.optim.SGD(other.parameters(), lr=0.1))
    train(model, plan, sgd(plan))


@with_gradients
def test_an_optimizer_of_all_parameters_is_refused(name: str) -> None:
    model, plan = compressed(name)
    before = state(model)
    with pytest.raises(ConfigError, match=r"plan.param_groups\(.*in place of model.parameters\(\)"):
        train(model, plan, torch.optim.SGD(model.parameters(), lr=0.05))
    assert all(torch.equal(value, before[key]) for key, value in state(model).items()), "nothing was changed"


@pytest.mark.parametrize("name", ["cs", "smol"])
def test_an_optimizer_of_all_parameters_gives_the_same_where_decisions_are_on_weights(name: str) -> None:
    found = []
    for own in (True, False):
        model, plan = compressed(name)
        parameters = plan.param_groups(weight_decay=0.01) if own else model.parameters()
        train(model, plan, torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01))
        found.append(state(model))
    assert all(torch.equal(value, found[1][key]) for key, value in found[0].items())


@with_gradients
def test_a_network_that_is_finished_is_any_other(name: str) -> None:
    model, plan = compressed(name)
    train(model, plan, sgd(plan))
    plan.harden()
    small = plan.finalize()
    scaler = torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(small.parameters(), lr=0.1)
    scaler.scale(small(INPUTS).square().mean()).backward()
    scaler.step(optimizer)


def test_a_copy_is_looked_at_too() -> None:
    model, _ = compressed("sharing")
    copied = copy.deepcopy(model)
    with pytest.raises(ConfigError, match="in place of model"):
        train(copied, pt.Plan.of(copied), torch.optim.SGD(copied.parameters(), lr=0.05))
