"""Every optimizer, in every implementation, follows the literal transcription of its algorithm for 100 steps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from paretorch.optim import AnnealedAdam, AvaGrad, AvaGradW, DelayedAdam
from paretorch.optim.base import AdaptiveOptimizer

from . import reference

ALGORITHMS = {
    AvaGrad: reference.avagrad,
    AvaGradW: reference.avagradw,
    DelayedAdam: reference.delayed_adam,
    AnnealedAdam: reference.annealed_adam,
}
IMPLEMENTATIONS = [{}, {"fused": True}, {"foreach": True}, {"foreach": False}]
SHAPES = [(7, 5), (3,), (4, 3, 2, 2), (1,), (11,)]


def build(kind: type[AdaptiveOptimizer], params: list[Tensor], **options: object) -> AdaptiveOptimizer:
    if kind is AnnealedAdam:
        options["steps"] = 100
    return kind(params, **options)  # type: ignore[arg-type]


def gradients(step: int, generator: torch.Generator) -> list[Tensor | None]:
    """Random gradients of mixed scale; some coordinates never have one, some begin late, one tensor is often missing."""
    found: list[Tensor | None] = []
    for i, shape in enumerate(SHAPES):
        g = torch.randn(shape, dtype=torch.float64, generator=generator) * 10.0 ** (i - 2)
        flat = g.view(-1)
        if flat.numel() > 4:
            flat[0] = 0
            flat[1:3] *= step >= 20
        found.append(None if i == 4 and step % 3 else g)
    return found


@pytest.mark.parametrize("kind", ALGORITHMS)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS, ids=str)
@pytest.mark.parametrize(("eps", "maximize"), [(1e-16, False), (1e-8, True), (0.1, False)])
def test_hundred_steps(kind, implementation, eps, maximize) -> None:
    generator = torch.Generator().manual_seed(0)
    settings = reference.Settings(lr=0.02, beta1=0.8, beta2=0.97, eps=eps, weight_decay=0.03, maximize=maximize)
    expected = [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in SHAPES]
    expected[0].view(-1)[0] = 0  # weight and gradient stay zero: a pruned weight, with decay and all
    params = [w.clone().requires_grad_() for w in expected]
    optimizer = build(
        kind, params, lr=0.02, betas=(0.8, 0.97), eps=eps, weight_decay=0.03, maximize=maximize, **implementation
    )
    memory = reference.Memory()
    for step in range(100):
        grads = gradients(step, generator)
        for p, g in zip(params, grads, strict=True):
            p.grad = None if g is None else g.clone()
        optimizer.step()
        expected = ALGORITHMS[kind](expected, grads, settings, memory)
        for p, w, g in zip(params, expected, grads, strict=True):
            torch.testing.assert_close(p.detach(), w, rtol=1e-9, atol=1e-12)
            if g is not None:
                assert torch.equal(p.grad, g), "gradients are left as they were"
    for i, p in enumerate(params):
        torch.testing.assert_close(optimizer.state[p]["exp_avg_sq"], memory.v[i], rtol=1e-9, atol=0)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS, ids=str)
@pytest.mark.parametrize("powers", [(0.0, 1.5), (0.5, 0.0), (0.25, 0.25)])
def test_every_schedule_of_eps(implementation, powers) -> None:
    """t^1.5 of section 6.5.1, and the examples √T and (Tt)^¼ of corollary 6.1; √t is the default above."""
    generator = torch.Generator().manual_seed(1)
    settings = reference.Settings(lr=0.05, beta1=0.8, beta2=0.97, eps=0.1, weight_decay=0.03)
    expected = [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in SHAPES]
    params = [w.clone().requires_grad_() for w in expected]
    options = {"lr": 0.05, "betas": (0.8, 0.97), "eps": 0.1, "weight_decay": 0.03, "powers": powers, **implementation}
    optimizer, memory = AnnealedAdam(params, 100, **options), reference.Memory()
    for step in range(100):
        grads = gradients(step, generator)
        for p, g in zip(params, grads, strict=True):
            p.grad = g
        optimizer.step()
        expected = reference.annealed_adam(expected, grads, settings, memory, 100, *powers)
    for p, w in zip(params, expected, strict=True):
        torch.testing.assert_close(p.detach(), w, rtol=1e-9, atol=1e-12)
