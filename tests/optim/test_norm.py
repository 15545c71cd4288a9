"""The norm of AvaGrad: over the whole network, of η of this step, without coordinates that never had a gradient."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paretorch.optim import AvaGrad, AvaGradW, DelayedAdam

MODES = [{}, {"fused": True}, {"foreach": True}, {"foreach": False}]
every_mode = pytest.mark.parametrize("mode", MODES, ids=str)


def run(params: list[Tensor], groups, grads: list[list[Tensor | None]], **options) -> AvaGrad:
    optimizer = AvaGrad(groups, **options)
    for step in grads:
        for p, g in zip(params, step, strict=True):
            p.grad = None if g is None else g.clone()
        optimizer.step()
    return optimizer


def fresh(*sizes: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(n, generator=generator, dtype=torch.float64).requires_grad_() for n in sizes]


def noise(*sizes: int, steps: int = 5, seed: int = 0) -> list[list[Tensor | None]]:
    generator = torch.Generator().manual_seed(seed)
    return [[torch.randn(n, generator=generator, dtype=torch.float64) for n in sizes] for _ in range(steps)]


@every_mode
def test_how_parameters_are_grouped_does_not_matter(mode) -> None:
    grads = noise(30, 7)
    one, two = fresh(30, 7), fresh(30, 7)
    run(one, one, grads, eps=1e-3, **mode)
    run(two, [{"params": [two[0]]}, {"params": [two[1]]}], grads, eps=1e-3, **mode)
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=0)


@every_mode
def test_how_weights_are_cut_into_tensors_does_not_matter(mode) -> None:
    grads = noise(40)
    (whole,) = fresh(40)
    parts = [piece.clone().requires_grad_() for piece in whole.detach().split([13, 27])]
    run([whole], [whole], grads, eps=1e-6, **mode)
    run(parts, parts, [list(step[0].split([13, 27])) for step in grads], eps=1e-6, **mode)
    torch.testing.assert_close(whole.detach(), torch.cat([p.detach() for p in parts]), rtol=1e-12, atol=0)


@every_mode
@pytest.mark.parametrize("eps", [1e-16, 1e-8, 0.1])
def test_weights_without_gradients_do_not_count(mode, eps) -> None:
    grads = noise(20)
    (small,) = fresh(20)
    large = torch.cat([small.detach(), torch.zeros(180, dtype=torch.float64)]).requires_grad_()
    run([small], [small], grads, eps=eps, **mode)
    run([large], [large], [[torch.cat([step[0], torch.zeros(180)])] for step in grads], eps=eps, **mode)
    torch.testing.assert_close(large[:20], small, rtol=1e-12, atol=0)
    assert bool((large[20:] == 0).all())


@every_mode
@pytest.mark.parametrize("kind", [AvaGrad, AvaGradW])
def test_weight_decay_is_part_of_the_gradient_unless_decoupled(mode, kind) -> None:
    """In AvaGradW weights without gradients do not count; in AvaGrad λw gives them a v, as docs/optimizers.md says."""
    grads = noise(20)
    used, unused = fresh(20, 50)
    alone = used.detach().clone().requires_grad_()
    both = kind([used, unused], lr=0.1, eps=1e-8, weight_decay=5e-4, **mode)
    one = kind([alone], lr=0.1, eps=1e-8, weight_decay=5e-4, **mode)
    for (g,) in grads:
        used.grad, alone.grad, unused.grad = g.clone(), g.clone(), torch.zeros_like(unused)
        both.step()
        one.step()
    alike = torch.allclose(used, alone, rtol=1e-12, atol=0)
    assert alike == (kind is AvaGradW)
    assert bool((both.state[unused]["exp_avg_sq"] > 0).any()) == (kind is AvaGrad)


@every_mode
def test_many_small_second_moments_do_not_overflow(mode) -> None:
    p = torch.ones(200_000, requires_grad=True)
    grads: list[list[Tensor | None]] = [[torch.full((200_000,), 1e-18)]] * 3
    run([p], [p], grads, eps=1e-16, lr=1e17, **mode)
    assert bool(torch.isfinite(p).all())
    assert not torch.equal(p.detach(), torch.ones(200_000)), "all η are equal, so that η/rms = 1: lr·m is subtracted"


@every_mode
def test_a_second_moment_beyond_the_range_stops_its_coordinate_alone(mode) -> None:
    p, other = torch.ones(4, requires_grad=True), torch.ones(3, requires_grad=True)
    grads: list[list[Tensor | None]] = [[torch.tensor([1.0, 1e25, 0.0, -1.0]), torch.tensor([1e-3, 0.0, 2.0])]] * 3
    run([p, other], [p, other], grads, eps=1e-8, **mode)
    assert bool(torch.isfinite(p).all())
    assert [x == 1 for x in p.tolist()] == [False, True, True, False]
    assert [x == 1 for x in other.tolist()] == [False, True, False]


@every_mode
def test_first_step_is_no_longer_than_the_next(mode) -> None:
    for kind in (AvaGrad, DelayedAdam):
        (p,) = fresh(50)
        optimizer = kind([p], lr=1e-3, eps=1e-8, betas=(0.0, 0.999), **mode)
        grad = noise(50, steps=1)[0][0]
        moves = []
        for _ in range(2):
            before = p.detach().clone()
            p.grad = grad.clone()
            optimizer.step()
            moves.append((p.detach() - before).norm())
        torch.testing.assert_close(moves[0], moves[1], rtol=1e-6, atol=0)


@every_mode
@pytest.mark.parametrize("eps", [1e-35, 1e-37, 1e-50, 1e-300])
def test_a_tiny_eps_changes_nothing(mode, eps: float) -> None:
    """In fp32 it would be 0 itself, or the squares of the scaled η would."""
    for kind in (AvaGrad, DelayedAdam):
        plain, tiny = (torch.ones(10, requires_grad=True) for _ in range(2))
        optimizers = kind([plain], eps=1e-20, **mode), kind([tiny], eps=eps, **mode)
        for step in noise(10, steps=3):
            grad = 100 * step[0].float() * (torch.arange(10) > 0)  # the first never has a gradient
            plain.grad, tiny.grad = grad.clone(), grad.clone()
            for optimizer in optimizers:
                optimizer.step()
        torch.testing.assert_close(tiny, plain, rtol=1e-6, atol=0)


@every_mode
def test_a_changed_eps_is_used_at_once(mode) -> None:
    """With one coordinate η/rms(η) = 1 whatever ε is; a norm of the old ε would show."""
    p = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = AvaGrad([p], lr=1.0, betas=(0.0, 0.9), eps=1e-3, **mode)
    for eps in (1e-3, 1e-3, 10.0, 1e-6):
        optimizer.param_groups[0]["eps"] = eps
        before = p.detach().clone()
        p.grad = torch.full_like(p, 0.5)
        optimizer.step()
        torch.testing.assert_close(before - p.detach(), torch.full_like(before, 0.5), rtol=1e-12, atol=0)


@every_mode
def test_edits_of_the_state_are_noticed(mode) -> None:
    """A hardened mask clears m and v of dropped weights; then they no longer count."""
    (p,), (twin,) = fresh(10), fresh(10)
    optimizer = run([p], [p], noise(10), eps=1e-8, **mode)
    edited = run([twin], [twin], noise(10), eps=1e-8, **mode)
    keep = torch.arange(10) < 4
    for key in ("exp_avg", "exp_avg_sq"):
        optimizer.state[p][key].mul_(keep)  # in place
        edited.state[twin][key] = edited.state[twin][key] * keep  # replaced
    grad = noise(10, steps=1, seed=9)[0][0] * keep
    eta = 1 / (optimizer.state[p]["exp_avg_sq"][:4].sqrt() + 1e-8)
    m = 0.9 * optimizer.state[p]["exp_avg"][:4] + 0.1 * grad[:4]
    expected = p.detach()[:4] - 0.1 * eta / eta.square().mean().sqrt() * m
    p.grad, twin.grad = grad.clone(), grad.clone()
    optimizer.step(), edited.step()
    torch.testing.assert_close(p.detach()[:4], expected, rtol=1e-10, atol=0)
    torch.testing.assert_close(p, twin, rtol=1e-12, atol=0)


@every_mode
def test_parameters_added_later(mode) -> None:
    old, new = fresh(6, 4)
    optimizer = run([old], [old], noise(6), eps=1e-8, **mode)
    optimizer.add_param_group({"params": [new], "lr": 0.01})
    for grads in noise(6, 4, steps=3, seed=5):
        old.grad, new.grad = grads
        before = new.detach().clone()
        optimizer.step()
        assert 0 < float((new.detach() - before).abs().max()) < 1


@every_mode
def test_large_eps_is_sgd_with_momentum(mode) -> None:
    grads = noise(12, 5, steps=20)
    ours, theirs = fresh(12, 5), fresh(12, 5)
    run(ours, ours, grads, lr=1.0, eps=1e8, **mode)
    sgd = torch.optim.SGD(theirs, lr=1.0, momentum=0.9, dampening=0.9)
    for p in theirs:  # torch starts the momentum at g instead of 0.1 g
        sgd.state[p]["momentum_buffer"] = torch.zeros_like(p)
    for step in grads:
        for p, g in zip(theirs, step, strict=True):
            p.grad = g
        sgd.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


@settings(max_examples=25, deadline=None)
@given(
    scale=st.floats(1e-4, 1e4),
    eps=st.floats(1e-8, 1e2),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
)
def test_scaling_loss_and_eps_together_scales_the_step(scale: float, eps: float, sizes: list[int]) -> None:
    """η(cg; cε) = η(g; ε)/c, and the norm takes the factor away: only m is scaled, and α/c undoes that."""
    grads = noise(*sizes, steps=3)
    plain, scaled = fresh(*sizes), fresh(*sizes)
    run(plain, plain, grads, eps=eps, lr=0.1)
    run(scaled, scaled, [[g * scale for g in step] for step in grads], eps=eps * scale, lr=0.1 / scale)
    for a, b in zip(plain, scaled, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)
