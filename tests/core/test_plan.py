"""The plan: found through wrappers and copies; what it trains and what it tells."""

import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from paretorch import ContinuousSparsification, Plan, compress
from paretorch.errors import ConfigError
from tests.core.tiny import batch, both, small_net, train, trained


class Wrapper(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def test_found_through_wrappers() -> None:
    model = small_net()
    plan = compress(model, *both(), steps=10)
    assert Plan.of(model) is plan
    assert Plan.of(Wrapper(Wrapper(model))) is plan
    assert Plan.of(torch.compile(model)) is plan


def test_copies_have_their_own() -> None:
    model = small_net()
    plan = compress(model, *both(), steps=10)
    for twin in (copy.deepcopy(model), AveragedModel(model), copy.deepcopy(Wrapper(model))):
        own = Plan.of(twin)
        assert own is not plan
        assert own.model is (twin if type(twin) is type(model) else twin.module)
        own.harden()
        assert not plan.is_hard
        assert own.metrics()["sparsity"] == pytest.approx(0.5, abs=0.01)


def test_a_plain_model_has_none() -> None:
    with pytest.raises(ConfigError, match="compress"):
        Plan.of(small_net())


def test_an_average_of_the_model_can_be_finalized() -> None:
    model = small_net()
    plan = compress(model, *both(), steps=10)
    average = AveragedModel(model)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.1)
    for _ in range(3):
        train(plan, optimizer, batch(), 3)
        average.update_parameters(model)
    small = Plan.of(average).finalize()
    assert list(small.state_dict()) == list(small_net().state_dict())
    assert not plan.is_hard


def test_param_groups_are_all_but_the_decisions() -> None:
    model = small_net()
    names = [name for name, _ in model.named_parameters()]
    parameters = list(model.parameters())
    model[1].bias.requires_grad_(False)
    plan = compress(model, *both(), steps=10)
    (group,) = plan.param_groups(weight_decay=5e-4)
    assert group["weight_decay"] == 5e-4
    expected = {id(p) for name, p in zip(names, parameters, strict=True) if name != "1.bias"}
    assert {id(p) for p in group["params"]} == expected
    assert len(group["params"]) == len(expected)


def test_metrics() -> None:
    plan = compress(small_net(), *both(), steps=10)
    metrics = plan.metrics()
    assert list(metrics) == ["step", "sparsity", "temperature", "shift", "bits", "bit_price"]
    assert all(isinstance(value, float) for value in metrics.values())
    assert metrics["step"] == 0
    assert metrics["temperature"] == 1
    assert metrics["bits"] == pytest.approx(8.0, abs=1e-4)
    plan.step()
    assert plan.metrics()["step"] == 1


@pytest.mark.parametrize("what", ["step", "harden", "finalize", "metrics", "penalty", "dense_state_dict"])
def test_a_plan_that_is_over_says_so(what: str) -> None:
    _, plan, _ = trained(ContinuousSparsification(target=0.5))
    plan.finalize()
    with pytest.raises(ConfigError, match="this plan is over, finalize has ended it"):
        getattr(plan, what)()


def test_a_preview_may_end_in_finalize() -> None:
    _, plan, _ = trained(ContinuousSparsification(target=0.5))
    with plan.hardened() as model:
        expected = model.eval()(batch())
        small = plan.finalize()
    assert torch.equal(small(batch()), expected)


def test_a_state_loaded_by_assignment_goes_on_being_trained() -> None:
    runs = []
    for assign in (False, True):
        model, plan, _ = trained(ContinuousSparsification(target=0.5), steps=3)
        model.load_state_dict(copy.deepcopy(model.state_dict()), assign=assign)
        train(plan, torch.optim.SGD(plan.param_groups(), lr=0.05), batch(), 3)
        runs.append(plan.dense_state_dict())
    assert all(torch.equal(runs[0][key], runs[1][key]) for key in runs[0])


def test_a_state_that_is_none_of_the_plan_is_refused() -> None:
    model, plan, _ = trained(ContinuousSparsification(target=0.5))
    with pytest.raises(ConfigError, match=r"this is no state of this plan, it has '0\.bias'"):
        plan.load_state_dict(model.state_dict())
    plan.load_state_dict({})  # of a plan that has not begun


def test_a_function_that_makes_no_optimizer_is_told() -> None:
    plan = compress(small_net(), ContinuousSparsification(target=0.5, optimizer=lambda parameters: None), steps=2)
    with pytest.raises(ConfigError, match="optimizer: the function returned None, which is no optimizer"):
        plan.step()
