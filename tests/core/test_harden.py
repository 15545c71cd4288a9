"""Deciding and leaving: preview, harden, recalibrate, finalize."""

import copy

import pytest
import torch

from paretorch import ContinuousSparsification, Plan
from paretorch.errors import ConfigError
from tests.core.tiny import batch, small_net, train, trained


def test_preview_ends_even_when_it_fails() -> None:
    model, plan, _ = trained()
    before = copy.deepcopy(model.state_dict())

    def look() -> None:
        with plan.hardened():
            assert plan.is_hard
            assert plan.metrics()["sparsity"] == pytest.approx(0.5, abs=0.01)
            raise KeyError

    with pytest.raises(KeyError):
        look()
    assert not plan.is_hard
    after = model.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
    plan.harden()
    with plan.hardened() as same:
        assert same is model
    assert plan.is_hard


@pytest.mark.parametrize("hard", [False, True])
def test_dense_state_is_the_plain_network(hard: bool) -> None:
    model, plan, optimizer = trained()
    if hard:
        plan.harden(optimizer)
    state = plan.dense_state_dict()
    plain = small_net(seed=9)
    assert list(state) == list(plain.state_dict())
    plain.load_state_dict(state)
    x = batch(seed=4)
    assert torch.equal(plain.eval()(x), model.eval()(x))
    state["0.weight"].zero_()
    assert bool(model[0].weight.any()), "a copy"


def test_recalibrate_estimates_batch_norm_afresh() -> None:
    model, plan, optimizer = trained()
    model.eval()
    model[0].train()
    batches = [batch(seed=s) for s in (11, 12, 13)]
    plan.harden(optimizer, recalibrate=((x, "a label") for x in batches))
    assert [m.training for m in model] == [True, False, False, False, False, False]
    assert model[1].momentum == 0.1
    with torch.no_grad():
        model[0].eval()
        inside = torch.stack([model[0](x) for x in batches])
    torch.testing.assert_close(model[1].running_mean, inside.mean((0, 1, 3, 4)), rtol=1e-4, atol=1e-5)
    per_batch = torch.stack([one.var((0, 2, 3)) for one in inside])
    torch.testing.assert_close(model[1].running_var, per_batch.mean(0), rtol=1e-4, atol=1e-5)
    kept = {name: value.clone() for name, value in model[1].state_dict().items()}
    with pytest.raises(ConfigError, match="no batch"):
        plan.harden(recalibrate=[])
    with pytest.raises(RuntimeError, match="channels"):
        plan.harden(recalibrate=[batches[0], batches[0][:, :1]])
    with pytest.raises(ConfigError, match="not one tensor"):
        plan.harden(recalibrate=batches[0])
    with pytest.raises(ConfigError, match="a list of tensors, not 20"):
        plan.harden(recalibrate=20)
    assert all(torch.equal(kept[name], value) for name, value in model[1].state_dict().items()), "not left half-way"


def test_harden_clears_the_momentum_of_dropped_weights() -> None:
    model, plan, optimizer = trained(ContinuousSparsification(target=0.5))
    weight = model[4].weight
    assert bool((optimizer.state[weight]["momentum_buffer"] != 0).all())
    before = optimizer.state[weight]["momentum_buffer"].clone()
    plan.harden(optimizer)
    dropped = model[4].weight == 0
    assert dropped.any()
    assert not dropped.all()
    after = optimizer.state[weight]["momentum_buffer"]
    assert torch.equal(after, before * ~dropped)
    still = weight.detach()[dropped].clone()
    train(plan, optimizer, batch(), 2)
    assert torch.equal(weight.detach()[dropped], still)
    assert bool((model[4].weight[dropped] == 0).all())


def test_hardening_twice_is_harmless() -> None:
    model, plan, optimizer = trained()
    plan.harden(optimizer)
    train(plan, optimizer, batch(), 2)
    before, momentum = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    plan.harden(optimizer)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    for one, state in optimizer.state_dict()["state"].items():
        assert torch.equal(state["momentum_buffer"], momentum["state"][one]["momentum_buffer"])


def test_steps_after_hardening_leave_decisions_and_counter() -> None:
    _, plan, optimizer = trained()
    plan.harden(optimizer)
    metrics = plan.metrics()
    train(plan, optimizer, batch(), 3)
    assert plan.metrics() == metrics


def test_finalize_hardens_first() -> None:
    model, plan, _ = trained()
    with plan.hardened():
        expected = model.eval()(batch())
    small = plan.finalize()
    assert torch.equal(small(batch()), expected)
    with pytest.raises(ConfigError, match="no plan"):
        Plan.of(small)


def test_what_is_no_optimizer_is_refused_before_anything_is_rounded() -> None:
    _, plan, optimizer = trained()
    for wrong in ([optimizer], torch.optim.lr_scheduler.StepLR(optimizer, 1)):
        with pytest.raises(ConfigError, match=r"plan\.harden takes the optimizer of the weights, not (list|StepLR)"):
            plan.harden(wrong)  # type: ignore[arg-type]
    assert not plan.is_hard
    with pytest.raises(ConfigError, match=r"plan\.step takes a GradScaler or nothing, not SGD"):
        plan.step(optimizer)  # type: ignore[arg-type]
