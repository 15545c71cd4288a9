"""A plan in the user's own loop: what the layers hold, and what a loop that is not the README's leaves behind."""

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn

from paretorch import SMOL, ContinuousSparsification, Plan, SMOLActivations, compress
from paretorch.core.method import Method
from paretorch.errors import PareWarning

from .tiny import batch, both, small_net

X = batch()


def _loss(model: nn.Module, x: Tensor = X) -> Tensor:
    output = model(x)
    return nn.functional.cross_entropy(output, torch.arange(len(x)) % output.shape[1])


def _begun(*methods: Method, steps: int = 20) -> tuple[nn.Module, Plan, torch.optim.Optimizer]:
    model = small_net()
    plan = compress(model, *(methods or both()), steps=steps, example=X)
    return model, plan, torch.optim.SGD(plan.param_groups(weight_decay=1e-3), lr=0.05, momentum=0.9)


def _step(model: nn.Module, plan: Plan, optimizer: torch.optim.Optimizer) -> float:
    loss = _loss(model)
    loss.backward()
    optimizer.step()
    plan.step()
    optimizer.zero_grad()
    return loss.item()


def _states(*models: nn.Module) -> list[dict[str, Tensor]]:
    return [copy.deepcopy(model.state_dict()) for model in models]


def _equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


ACTIVATIONS: tuple[Method, ...] = (SMOL(target_bits=3.0), SMOLActivations(target_bits=3.0))


@pytest.mark.parametrize("methods", [both(), ACTIVATIONS], ids=["weights", "activations"])
@pytest.mark.parametrize("value", [1.0, float("nan")])
def test_a_skipped_batch_leaves_nothing_behind(methods: tuple[Method, ...], value: float) -> None:
    (model, plan, optimizer), (twin, twin_plan, twin_optimizer) = _begun(*methods), _begun(*methods)
    for norm in (model[1], twin[1]):  # its statistics see the skipped batch
        norm.eval()
    for i in range(6):
        if i == 3:
            (_loss(model, batch(seed=7)) * value).backward()
            optimizer.zero_grad()
        assert _step(model, plan, optimizer) == _step(twin, twin_plan, twin_optimizer)
    assert _equal(*_states(model, twin))


def test_layers_hold_plain_parameters() -> None:
    model, plan, optimizer = _begun()
    _step(model, plan, optimizer)
    for module in (model[0], model[4], model[5]):
        assert type(module) in (nn.Conv2d, nn.Linear)
        assert isinstance(module._parameters["weight"], nn.Parameter)
        assert module.weight.grad_fn is None
    with torch.no_grad():
        assert not torch.equal(model[0].weight, model.state_dict()["0.weight"])  # a state has what is trained


class _Averaging(torch.optim.SGD):
    """An optimizer of others: its step calls that of its base class."""

    def step(self, closure=None):  # type: ignore[no-untyped-def, override]
        return super().step(closure)


@pytest.mark.parametrize("kind", [torch.optim.SGD, _Averaging])
def test_a_closure_runs_with_the_effective_weights(kind: type[torch.optim.SGD]) -> None:
    (model, plan, _), (twin, twin_plan, _) = _begun(), _begun()
    torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0).step()  # the base class has hooks of its own
    optimizer, twin_optimizer = kind(model.parameters(), lr=0.05), kind(twin.parameters(), lr=0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            expected = _step(twin, twin_plan, twin_optimizer)

            def closure() -> Tensor:
                optimizer.zero_grad()
                loss = _loss(model)
                loss.backward()
                return loss

            assert optimizer.step(closure).item() == expected
            plan.step()
    assert _equal(*_states(model, twin))


def test_an_optimizer_that_calls_its_closure_many_times() -> None:
    model, plan, _ = _begun(ContinuousSparsification(target=0.5))
    optimizer = torch.optim.LBFGS(plan.param_groups()[0]["params"], lr=0.2, max_iter=4)
    seen = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = _loss(model)
        loss.backward()
        seen.append(loss.item())
        return loss

    for _ in range(5):
        optimizer.step(closure)
        plan.step()
    assert len(seen) > 5
    assert seen[-1] < seen[0]


def test_a_forgotten_step_of_the_plan_is_warned_of_once() -> None:
    model, plan, optimizer = _begun()

    def steps_without_the_plan() -> None:
        for _ in range(3):
            _loss(model).backward()
            optimizer.step()
            optimizer.zero_grad()

    with pytest.warns(PareWarning, match=r"call plan\.step\(\) after each optimizer\.step\(\)") as found:
        steps_without_the_plan()
    assert len(found) == 1
    assert torch.isfinite(torch.tensor(_step(model, plan, optimizer)))


def test_fine_tuning_needs_no_step_of_the_plan() -> None:
    (model, plan, optimizer), (twin, twin_plan, twin_optimizer) = _begun(steps=4), _begun(steps=4)
    for one, other, own in ((model, plan, optimizer), (twin, twin_plan, twin_optimizer)):
        for _ in range(4):
            _step(one, other, own)
        other.harden(own)
    for _ in range(3):
        _step(twin, twin_plan, twin_optimizer)
        _loss(model).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert _equal(*_states(model, twin))
    assert _equal(plan.finalize().state_dict(), twin_plan.finalize().state_dict())


def test_gradients_may_be_cleared_before_the_step_of_the_plan() -> None:
    (model, plan, optimizer), (twin, twin_plan, twin_optimizer) = _begun(), _begun()
    for _ in range(4):
        _step(twin, twin_plan, twin_optimizer)
        _loss(model).backward()
        optimizer.step()
        optimizer.zero_grad()
        plan.step()
    assert _equal(*_states(model, twin))


def test_a_frozen_weight_stays_and_its_decisions_learn() -> None:
    model = small_net()
    model[4].weight.requires_grad_(False)
    kept = model[4].weight.detach().clone()
    plan = compress(model, ContinuousSparsification(target=0.5), steps=8)
    before = plan.state_dict()
    assert all(parameter is not model[4].weight for group in plan.param_groups() for parameter in group["params"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(8):
        _step(model, plan, optimizer)
    assert before != plan.state_dict()
    assert torch.equal(model.state_dict()["4.weight"], kept)
    plan.harden(optimizer)
    small = plan.finalize()
    assert not small[4].weight.requires_grad
    left = small[4].weight != 0
    assert torch.equal(small[4].weight[left], (kept * (small[4].weight[left][0] / kept[left][0]))[left])
    assert 0.2 < float(left.float().mean()) < 0.8


def test_evaluation_has_no_noise_and_training_has_it_again() -> None:
    model, plan, optimizer = _begun(SMOL(target_bits=4.0))
    _step(model, plan, optimizer)
    noisy = model[4].weight.detach().clone()
    trained = model.state_dict()["4.weight"]
    model.eval()
    assert torch.equal(model[4].weight, trained)
    model.train()
    assert torch.equal(model[4].weight, noisy)
    assert not torch.equal(noisy, trained)


def test_an_average_of_the_model_averages_what_is_trained() -> None:
    model, plan, optimizer = _begun(SMOL(target_bits=4.0))
    average = torch.optim.swa_utils.AveragedModel(model)
    states = []
    for _ in range(3):
        _step(model, plan, optimizer)
        average.update_parameters(model)
        states.append(model.state_dict()["4.weight"].clone())
    expected = torch.stack(states).mean(0)
    torch.testing.assert_close(average.module.state_dict()["4.weight"], expected)
    torch.testing.assert_close(average.eval().module[4].weight, expected)
    assert Plan.of(average) is not plan


def test_the_network_may_be_read_between_the_two_steps() -> None:
    model, plan, optimizer = _begun()
    _loss(model).backward()
    optimizer.step()
    state, dense = copy.deepcopy(model.state_dict()), plan.dense_state_dict()
    plan.step()
    assert torch.equal(model.state_dict()["5.bias"], state["5.bias"])
    assert dense.keys() == small_net().state_dict().keys()
    twin, twin_plan, twin_optimizer = _begun()
    _step(twin, twin_plan, twin_optimizer)
    assert _equal(*_states(model, twin))


def test_a_batch_of_weights_is_made_anew_when_the_model_moves() -> None:
    model, plan, optimizer = _begun()
    _step(model, plan, optimizer)
    model.double().float()
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.05)
    before = model.state_dict()["4.weight"].clone()
    _step(model, plan, optimizer)
    assert not torch.equal(model.state_dict()["4.weight"], before)
