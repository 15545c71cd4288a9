"""What users of torch.optim expect: schedulers, named parameters, groups, capture, resets."""

from __future__ import annotations

import collections
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from paretorch.errors import ConfigError
from paretorch.optim import AvaGrad, AvaGradW, DelayedAdam, base

from .common import build, every_kind, network, train, weights

SCHEDULERS = {
    "one cycle, which moves betas too": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.2, total_steps=20),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 20),
    "warm-up, then steps": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=3), lr_scheduler.MultiStepLR(o, [4], 0.5)], [3]
    ),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (step + 1)),
}


@every_kind
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_set_what_the_step_uses(kind, name) -> None:
    scheduled, by_hand = network(), network()
    optimizer, twin = build(kind, scheduled.parameters(), lr=0.1), build(kind, by_hand.parameters(), lr=0.1)
    scheduler = SCHEDULERS[name](optimizer)
    rates = []
    for step in range(6):
        (group,) = optimizer.param_groups
        rates.append(group["lr"])
        twin.param_groups[0].update(lr=group["lr"], betas=group["betas"])
        train(scheduled, optimizer, 1, seed=step)
        train(by_hand, twin, 1, seed=step)
        scheduler.step()
    assert len(set(rates)) > 2
    assert torch.equal(weights(scheduled), weights(by_hand))


@every_kind
def test_reduce_on_plateau(kind) -> None:
    optimizer = build(kind, network().parameters(), lr=0.1)
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    for _ in range(3):
        scheduler.step(1.0)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.001)


@every_kind
def test_a_scheduler_state_continues(kind) -> None:
    whole, halves = network(), network()
    first = build(kind, whole.parameters())
    cosine = lr_scheduler.CosineAnnealingLR(first, 8)
    for step in range(6):
        train(whole, first, 1, seed=step)
        cosine.step()
    second = build(kind, halves.parameters())
    begun = lr_scheduler.CosineAnnealingLR(second, 8)
    for step in range(3):
        train(halves, second, 1, seed=step)
        begun.step()
    third = build(kind, halves.parameters())
    third.load_state_dict(second.state_dict())
    resumed = lr_scheduler.CosineAnnealingLR(third, 8, last_epoch=3)
    resumed.load_state_dict(begun.state_dict())
    third.load_state_dict(second.state_dict())
    for step in range(3, 6):
        train(halves, third, 1, seed=step)
        resumed.step()
    torch.testing.assert_close(weights(whole), weights(halves))


@every_kind
def test_named_parameters(kind) -> None:
    named, plain = network(), network()
    first, second = build(kind, named.named_parameters()), build(kind, plain.parameters())
    train(named, first, 3)
    train(plain, second, 3)
    assert torch.equal(weights(named), weights(plain))
    again = build(kind, named.named_parameters())
    again.load_state_dict(first.state_dict())
    assert again.state_dict()["param_groups"][0]["param_names"][0] == "0.weight"


@every_kind
def test_pickling(kind) -> None:
    model = network()
    optimizer = build(kind, model.parameters())
    train(model, optimizer, 2)
    twin, twin_optimizer = pickle.loads(pickle.dumps((model, optimizer)))
    train(model, optimizer, 2)
    train(twin, twin_optimizer, 2)
    assert torch.equal(weights(model), weights(twin))


@every_kind
@pytest.mark.parametrize("how", ["clear", "replace", "one"])
def test_a_state_can_be_reset(kind, how) -> None:
    model = network()
    optimizer = build(kind, model.parameters())
    train(model, optimizer, 3)
    first = next(model.parameters())
    if how == "clear":
        optimizer.state.clear()
    elif how == "replace":
        optimizer.state = collections.defaultdict(dict)
    else:
        optimizer.state[first] = {}
    train(model, optimizer, 1)
    torch.testing.assert_close(optimizer.state[first]["exp_avg"], 0.1 * first.grad, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"foreach": False}], ids=str)
@pytest.mark.parametrize("how", ["clear", "zero", "other parameters"])
def test_the_first_step_after_a_reset_is_that_of_a_new_optimizer(how, options) -> None:
    models = [network() for _ in range(3)]
    old, new = (AvaGrad(model.parameters(), lr=1.0, eps=1e-8, **options) for model in models[:2])
    train(models[0], old, 2)
    models[0].load_state_dict(models[1].state_dict())
    if how == "clear":
        old.state.clear()
    elif how == "zero":
        for state in old.state.values():
            state["exp_avg"].zero_(), state["exp_avg_sq"].zero_()
    else:
        old.param_groups[0]["params"] = list(models[2].parameters())
    again = models[2] if how == "other parameters" else models[0]
    for _ in range(2):
        train(again, old, 1)
        train(models[1], new, 1)
    assert torch.equal(weights(again), weights(models[1]))


@pytest.mark.parametrize("options", [{}, {"fused": True}, {"foreach": True}, {"foreach": False}], ids=str)
def test_every_group_has_its_own_numbers_and_all_share_one_norm(options) -> None:
    torch.manual_seed(0)
    params = [torch.randn(n, dtype=torch.float64).requires_grad_() for n in (6, 5)]
    numbers = [
        {"lr": 0.1, "eps": 1e-3, "betas": (0.9, 0.99), "weight_decay": 0.1},
        {"lr": 0.02, "eps": 0.5, "betas": (0.5, 0.9), "weight_decay": 0.0, "maximize": True},
    ]
    optimizer = AvaGrad([{"params": [p], **n} for p, n in zip(params, numbers, strict=True)], **options)
    moments = [(torch.zeros(6, dtype=torch.float64),) * 2, (torch.zeros(5, dtype=torch.float64),) * 2]
    expected = [p.detach().clone() for p in params]
    for _ in range(5):
        grads = [torch.randn_like(p) for p in params]
        etas, olds = [], []
        for i, (g, n) in enumerate(zip(grads, numbers, strict=True)):
            g = (-g if n.get("maximize") else g) + n["weight_decay"] * expected[i]
            m, v = moments[i]
            new = n["betas"][1] * v + (1 - n["betas"][1]) * g * g
            moments[i] = (n["betas"][0] * m + (1 - n["betas"][0]) * g, new)
            olds.append(v if bool((v > 0).any()) else new)
            etas.append(1 / (olds[i].sqrt() + n["eps"]))
        norm = (torch.cat(etas) / 11**0.5).norm()
        expected = [
            w - n["lr"] / norm * eta * m for w, n, eta, (m, _) in zip(expected, numbers, etas, moments, strict=True)
        ]
        for p, g in zip(params, grads, strict=True):
            p.grad = g.clone()
        optimizer.step()
    for p, w in zip(params, expected, strict=True):
        torch.testing.assert_close(p.detach(), w, rtol=1e-9, atol=1e-12)


@every_kind
def test_capturable_takes_the_same_steps(kind) -> None:
    a, b = network(), network()
    train(a, build(kind, a.parameters(), capturable=True), 4)
    train(b, build(kind, b.parameters()), 4)
    torch.testing.assert_close(weights(a), weights(b), rtol=1e-6, atol=1e-7)


def test_a_capture_that_cannot_work_raises(monkeypatch) -> None:
    model = network()
    optimizer, ready = AvaGrad(model.parameters()), AvaGrad(model.parameters(), capturable=True)
    fresh = AvaGrad(model.parameters(), capturable=True)
    train(model, optimizer, 1)
    train(model, ready, 1)
    monkeypatch.setattr(base, "_is_capturing", lambda: True)
    with pytest.raises(ConfigError, match="capturable=True"):
        optimizer.step()
    with pytest.raises(ConfigError, match="Take one step"):
        fresh.step()
    before = weights(model)
    ready.step()
    assert not torch.equal(before, weights(model))


@every_kind
def test_gradients_that_become_sparse_are_refused_too(kind) -> None:
    table = torch.ones(4, 2, requires_grad=True)
    other = torch.ones(3, requires_grad=True)
    optimizer = build(kind, [other, table])
    table.grad, other.grad = torch.ones(4, 2), torch.ones(3)
    optimizer.step()
    before, steps = other.detach().clone(), float(optimizer.state[other]["step"])
    table.grad = torch.ones(4, 2).to_sparse()
    with pytest.raises(ConfigError, match="sparse=False"):
        optimizer.step()
    assert torch.equal(other.detach(), before)
    assert float(optimizer.state[other]["step"]) == steps


@every_kind
def test_hooks_and_empty_and_frozen_parameters(kind) -> None:
    empty = torch.ones(0, requires_grad=True)
    frozen, free = torch.ones(2), torch.ones(2, requires_grad=True)
    optimizer = build(kind, [empty, frozen, free])
    called: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    optimizer.register_step_post_hook(lambda *_: called.append("after"))
    empty.grad, free.grad = torch.ones(0), torch.ones(2)
    optimizer.step()
    assert called == ["before", "after"]
    assert torch.equal(frozen, torch.ones(2))
    assert bool((free < 1).all())
    frozen.requires_grad_()
    frozen.grad = torch.ones(2)
    optimizer.step()
    assert bool((frozen < 1).all()), "a parameter that is thawed is stepped"


def parameters() -> list[Tensor]:
    return [torch.randn(3, requires_grad=True), torch.randn(2, 2, requires_grad=True)]


@pytest.mark.parametrize("kind", [AvaGrad, AvaGradW, DelayedAdam])
def test_parameters_appended_to_a_group_by_hand(kind) -> None:
    first, second = parameters()
    optimizer = kind([first])
    first.grad = torch.ones(3)
    optimizer.step()
    optimizer.param_groups[0]["params"].append(second)
    second.grad, before = torch.ones(2, 2), second.detach().clone()
    optimizer.step()
    assert bool((second < before).all())


@every_kind
def test_parameters_and_flags_replaced_by_hand(kind) -> None:
    first, second = network(), network()
    optimizer = build(kind, first.parameters())
    train(first, optimizer, 2)
    (group,) = optimizer.param_groups
    group["params"], group["capturable"] = list(second.parameters()), True
    left, before = weights(first), weights(second)
    train(second, optimizer, 1)
    assert torch.equal(weights(first), left)
    assert not torch.equal(weights(second), before), "those in the group are stepped, and no others"
    group["foreach"] = True
    train(second, optimizer, 1)
    assert type(optimizer._buckets[0][1]).__name__ == "ForeachBucket"


@every_kind
def test_autocast_and_accumulation_under_a_scaler(kind) -> None:
    a, b = network(), network()
    first, second = build(kind, a.parameters()), build(kind, b.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    x = torch.randn(8, 6)
    for _ in range(2):
        for half in x.chunk(2):
            scaler.scale(a(half).square().sum()).backward()
            b(half).square().sum().backward()
        scaler.unscale_(first)
        nn.utils.clip_grad_norm_(a.parameters(), 0.5)
        nn.utils.clip_grad_norm_(b.parameters(), 0.5)
        scaler.step(first), second.step()
        scaler.update()
        first.zero_grad(), second.zero_grad()
    torch.testing.assert_close(weights(a), weights(b), rtol=1e-5, atol=1e-6)


@every_kind
@pytest.mark.parametrize("options", [{}, {"foreach": True}], ids=str)
@pytest.mark.parametrize("whole", [False, True])
def test_torch_compile_of_the_step(kind, options, whole) -> None:
    """Torch's own optimizers may be compiled, alone or with the network; ours run uncompiled."""
    compiled, plain = network(), network()
    first, second = build(kind, compiled.parameters(), **options), build(kind, plain.parameters(), **options)

    def learn(model: nn.Module, x: Tensor, step) -> None:
        model(x).square().mean().backward()
        step()

    step = torch.compile(first.step, backend="eager")
    both = torch.compile(learn, backend="eager")
    for x in torch.randn(3, 5, 6):
        if whole:
            both(compiled, x, first.step)
        else:
            learn(compiled, x, step)
        learn(plain, x, second.step)
        first.zero_grad(), second.zero_grad()
    torch.testing.assert_close(weights(compiled), weights(plain))
