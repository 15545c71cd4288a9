"""What users of torch.optim expect: states, dtypes, memory formats, scalers, closures, errors."""

from __future__ import annotations

import copy
import io
from dataclasses import replace

import pytest
import torch
from torch import nn

from paretorch.errors import ConfigError
from paretorch.optim import AnnealedAdam, AvaGrad, AvaGradW, DelayedAdam
from paretorch.optim.hyperparameters import Hyperparameters
from paretorch.optim.kernels.foreach import ForeachBucket
from paretorch.optim.kernels.parameter import ParameterView, new_state

from .common import build, every_kind, network, train, weights


@every_kind
def test_learns(kind) -> None:
    model = network()
    x, y = torch.randn(64, 6), torch.randn(64, 3)
    optimizer = build(kind, model.parameters(), lr=0.5 if kind in (AvaGrad, AvaGradW, AnnealedAdam) else 0.01)
    before = nn.functional.mse_loss(model(x), y).item()
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    assert nn.functional.mse_loss(model(x), y).item() < 0.9 * before


@every_kind
@pytest.mark.parametrize("state_dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"fused": True}, {"foreach": True}], ids=str)
def test_a_saved_state_continues_bit_for_bit(kind, state_dtype, options) -> None:
    whole, halves = network(), network()
    options = {"eps": 1e-6, "weight_decay": 0.01, "state_dtype": state_dtype, **options}
    through = build(kind, whole.parameters(), **options)
    train(whole, through, 4)
    train(whole, through, 4, seed=2)
    first = build(kind, halves.parameters(), **options)
    train(halves, first, 4)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = build(kind, halves.parameters(), **options)
    second.load_state_dict(torch.load(file, weights_only=True))
    train(halves, second, 4, seed=2)
    assert torch.equal(weights(whole), weights(halves))


def test_half_precision_weights_keep_full_precision_moments_when_loaded() -> None:
    model = network().to(torch.bfloat16)
    optimizer = AvaGrad(model.parameters())
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()
    second = AvaGrad(model.parameters())
    second.load_state_dict(optimizer.state_dict())
    for p in model.parameters():
        assert second.state[p]["exp_avg"].dtype == torch.float32
        assert torch.equal(second.state[p]["exp_avg_sq"], optimizer.state[p]["exp_avg_sq"])


@pytest.mark.parametrize("kind", [AvaGrad, DelayedAdam])
def test_loads_what_adam_saved(kind) -> None:
    model = network()
    adam = torch.optim.Adam(model.parameters(), lr=0.003, amsgrad=True)
    train(model, adam, 3)
    optimizer = build(kind, model.parameters(), eps=0.5)
    optimizer.load_state_dict(adam.state_dict())
    group = optimizer.param_groups[0]
    assert group["lr"] == 0.003
    assert group["version"] == 1
    assert "amsgrad" not in group
    for p in model.parameters():
        assert set(optimizer.state[p]) == {"step", "exp_avg", "exp_avg_sq"}
        assert torch.equal(optimizer.state[p]["exp_avg_sq"], adam.state[p]["exp_avg_sq"])
    train(model, optimizer, 1)
    assert float(optimizer.state[p]["step"]) == 4


def test_a_state_of_the_future_is_refused() -> None:
    optimizer = AvaGrad(network().parameters())
    state = optimizer.state_dict()
    state["param_groups"][0]["version"] = 99
    with pytest.raises(ConfigError, match="version 99"):
        optimizer.load_state_dict(state)


@every_kind
def test_deepcopy_continues_alike(kind) -> None:
    model = network()
    optimizer = build(kind, model.parameters())
    train(model, optimizer, 3)
    twin, twin_optimizer = copy.deepcopy((model, optimizer))
    train(model, optimizer, 3)
    train(twin, twin_optimizer, 3)
    assert torch.equal(weights(model), weights(twin))


@every_kind
def test_closure(kind) -> None:
    model = network()
    optimizer = build(kind, model.parameters())
    x = torch.randn(5, 6)

    def closure() -> float:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss.item()

    before = weights(model)
    assert optimizer.step(closure) > 0
    assert not torch.equal(before, weights(model))


@every_kind
def test_tensor_learning_rate_and_scheduler(kind) -> None:
    results = []
    for lr in (0.1, torch.tensor(0.1)):
        model = network()
        optimizer = build(kind, model.parameters(), lr=lr)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        for step in range(5):
            train(model, optimizer, 1, seed=step)
            schedule.step()
        assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.025)
        results.append(weights(model))
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-8)


@every_kind
@pytest.mark.parametrize("fused", [None, True, False])
def test_complex_is_a_pair_of_reals(kind, fused) -> None:
    z = torch.randn(4, 3, dtype=torch.complex64).requires_grad_()
    pair = torch.view_as_real(z.detach()).clone().requires_grad_()
    first, second = (build(kind, [p], lr=0.05, weight_decay=0.1, fused=fused) for p in (z, pair))
    for _ in range(4):
        z.grad = torch.randn_like(z)
        pair.grad = torch.view_as_real(z.grad).clone()
        first.step(), second.step()
    assert torch.equal(torch.view_as_real(z.detach()), pair.detach())


@every_kind
@pytest.mark.parametrize("options", [{}, {"fused": True}, {"foreach": True}, {"foreach": False}], ids=str)
def test_gradients_that_are_only_marked_as_conjugate_or_negative(kind, options) -> None:
    """Torch sets a bit in place of computing them; who reads their memory has to look at it."""
    z, pair = (torch.ones(4, dtype=torch.complex64).requires_grad_() for _ in range(2))
    p, q = (torch.ones(4, requires_grad=True) for _ in range(2))
    first, second = build(kind, [z, p], **options), build(kind, [pair, q], **options)
    (z.conj() * torch.tensor([1, 2j, 1 + 1j, 3 - 1j])).abs().sum().backward()
    p.grad = torch._neg_view(torch.arange(4.0))
    assert z.grad.is_conj()
    pair.grad, q.grad = z.grad.resolve_conj(), -torch.arange(4.0)
    first.step(), second.step()
    assert torch.equal(z, pair)
    assert torch.equal(p, q)


@every_kind
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"fused": True}, {"foreach": True}, {"foreach": False}], ids=str)
def test_half_precision_weights(kind, dtype, options) -> None:
    half = torch.randn(50).to(dtype).requires_grad_()
    full = half.detach().float().requires_grad_()
    first, second = build(kind, [half], **options), build(kind, [full], **options)
    half.grad = torch.randn(50).to(dtype)
    full.grad = half.grad.float()
    first.step(), second.step()
    torch.testing.assert_close(half.detach(), full.detach().to(dtype), rtol=0, atol=0)


@every_kind
def test_memory_formats_and_slices_give_the_same_step(kind) -> None:
    plain = torch.randn(4, 6, 3, 3).requires_grad_()
    last = plain.detach().clone(memory_format=torch.channels_last).requires_grad_()
    gaps = torch.empty(4, 6, 3, 5)[..., :3].copy_(plain.detach()).requires_grad_()
    optimizers = [build(kind, [p], weight_decay=0.1) for p in (plain, last, gaps)]
    for _ in range(3):
        grad = torch.randn(4, 6, 3, 3)
        plain.grad, last.grad, gaps.grad = grad, grad.clone(), grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(last, plain, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gaps, plain, rtol=1e-5, atol=1e-6)


@every_kind
def test_gradient_accumulation_is_the_sum(kind) -> None:
    a, b = network(), network()
    first, second = build(kind, a.parameters()), build(kind, b.parameters())
    x = torch.randn(8, 6)
    for _ in range(2):
        for half in x.chunk(2):
            a(half).square().sum().backward()
        b(x).square().sum().backward()
        for optimizer in (first, second):
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(weights(a), weights(b))


@every_kind
def test_gradient_scaler(kind) -> None:
    a, b = network(), network()
    first, second = build(kind, a.parameters()), build(kind, b.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    x = torch.randn(8, 6)
    for _ in range(3):
        scaler.scale(a(x).square().mean()).backward()
        scaler.step(first)
        scaler.update()
        b(x).square().mean().backward()
        second.step()
        first.zero_grad(), second.zero_grad()
    torch.testing.assert_close(weights(a), weights(b))
    before = weights(a)
    scaler.scale(a(x * float("inf")).square().mean()).backward()
    scaler.step(first)
    assert torch.equal(before, weights(a))


@every_kind
def test_no_gradients_no_step(kind) -> None:
    model = network()
    before = weights(model)
    build(kind, model.parameters()).step()
    assert torch.equal(before, weights(model))


@every_kind
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr": -1.0}, "lr"),
        ({"lr": "high"}, "lr must be at least 0, not 'high'"),
        ({"lr": None}, "lr"),
        ({"lr": torch.ones(2)}, "one element"),
        ({"eps": 0.0}, "eps"),
        ({"eps": None}, "eps"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"betas": 0.9}, "two numbers"),
        ({"betas": ("a", "b")}, "two numbers"),
        ({"weight_decay": -0.1}, "weight_decay"),
        ({"weight_decay": "none"}, "weight_decay"),
        ({"differentiable": True}, "differentiable"),
        ({"foreach": True, "fused": True}, "not both"),
        ({"state_dtype": torch.int8}, "state_dtype"),
    ],
    ids=str,
)
def test_wrong_arguments(kind, options, words) -> None:
    with pytest.raises(ConfigError, match=words):
        build(kind, [torch.ones(2, requires_grad=True)], **options)
    optimizer = build(kind, [torch.ones(2, requires_grad=True)])
    if "foreach" not in options:
        with pytest.raises(ConfigError, match=words):
            optimizer.add_param_group({"params": [torch.ones(2, requires_grad=True)], **options})


def test_unknown_options_and_wrong_schedules() -> None:
    p = [torch.ones(2, requires_grad=True)]
    with pytest.raises(TypeError, match="amsgrad"):
        AvaGrad(p, amsgrad=True)  # type: ignore[call-arg]
    for steps in (0, None, float("nan")):
        with pytest.raises(ConfigError, match="steps"):
            AnnealedAdam(p, steps=steps)
    for powers in ((-0.5, 1.0), 0.5, (1.0,)):
        with pytest.raises(ConfigError, match="powers"):
            AnnealedAdam(p, steps=10, powers=powers)


@every_kind
def test_sparse_gradients_are_refused_before_anything_changes(kind) -> None:
    embedding = nn.Embedding(5, 3, sparse=True)
    other = torch.ones(3, requires_grad=True)
    optimizer = build(kind, [other, *embedding.parameters()])
    (embedding(torch.tensor([1])) * other).sum().backward()
    with pytest.raises(ConfigError, match="sparse=False"):
        optimizer.step()
    assert torch.equal(other.detach(), torch.ones(3))


@every_kind
@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16])
def test_hyperparameters_on_the_device(kind, state_dtype) -> None:
    """In a captured graph lr, ε and the step count are tensors; the result is the same."""
    moved = []
    for wrap in (float, lambda x: torch.tensor(float(x))):
        generator = torch.Generator().manual_seed(0)
        p = torch.randn(20, generator=generator)
        state = new_state(p, state_dtype)
        bucket = ForeachBucket([ParameterView(p, state, 0)], seed=3, single=False)
        for step in (1, 2, 3):
            hyper = Hyperparameters(wrap(0.1), 0.9, 0.99, 1e-3, 0.01, False, kind.rule)
            if kind is AnnealedAdam:
                hyper = replace(hyper, eps=wrap(0.5 * step))
            grads = [torch.randn(20, generator=generator)]
            total = torch.tensor([20.0, 5.0], dtype=torch.float64) if kind.rule.normalised else None
            bucket.update(grads, hyper, total, wrap(step))
        moved.append((p, state["exp_avg"].float()))
    torch.testing.assert_close(moved[0], moved[1], rtol=1e-6, atol=1e-7)
