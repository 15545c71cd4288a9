"""The update for CPUs as one compiled loop per tensor (`fused=True`): p, g, m, v are read once, p, m, v written once.

torch.compile translates `_loop` to C++ the first time, which takes some seconds and a C++ compiler; the result is kept
on disk. Numbers that change from step to step are a tensor, so that nothing is compiled again for them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from paretorch.optim._bucket import Bucket, Gradients
from paretorch.optim._leaf import Leaf
from paretorch.optim._norm import root_mean_square
from paretorch.optim._rule import Hyper, Rule, Scalar

_UPDATE, _PREVIEW, _MEASURE = range(3)
Variant = tuple[Rule, bool, bool, int, torch.dtype]


class CompiledBucket(Bucket):
    """Steps dense fp32 or fp64 leaves whose state has the same dtype."""

    def __init__(self, leaves: list[Leaf], seed: int) -> None:
        super().__init__(leaves, seed)
        self._parts = [torch.zeros(2, dtype=torch.float64) for _ in leaves]

    def stats(self) -> Tensor:
        return torch.stack(self._parts).sum(0)

    def preview(self, grads: Gradients, hyper: Hyper) -> Tensor:
        numbers = self._numbers(hyper, None)
        parts = [
            self._run(_PREVIEW, leaf, grad, hyper, numbers)
            for leaf, grad in zip(self.leaves, grads, strict=True)
            if grad is not None
        ]
        return torch.stack([*parts, torch.zeros(2, dtype=torch.float64)]).sum(0)

    def _measure(self, hyper: Hyper) -> None:
        numbers = self._numbers(hyper, None)
        self._parts = [self._run(_MEASURE, leaf, leaf.p, hyper, numbers) for leaf in self.leaves]

    def _update(self, grads: Gradients, hyper: Hyper, total: Tensor | None, now: Scalar) -> None:
        numbers = self._numbers(hyper, total)
        for i, (leaf, grad) in enumerate(zip(self.leaves, grads, strict=True)):
            if grad is not None:
                self._parts[i] = self._run(_UPDATE, leaf, grad, hyper, numbers)

    def _run(self, mode: int, leaf: Leaf, g: Tensor, hyper: Hyper, numbers: Tensor) -> Tensor:
        decays = hyper.weight_decay != 0
        loop = _variant((hyper.rule, decays, hyper.maximize, mode, self.work_dtype))
        # Lengths 0 and 1 would each be compiled apart, and the preview runs once: they are not worth it.
        call = loop if leaf.p.numel() > 1 and mode != _PREVIEW else _loop
        g = g.to(self.work_dtype)
        total, live = call(leaf.p, g, leaf.m, leaf.v, numbers, hyper.rule, decays, hyper.maximize, mode)
        return torch.stack((total.double() / hyper.damping**2, live.double()))

    def _numbers(self, hyper: Hyper, total: Tensor | None) -> Tensor:
        rate = float(hyper.lr) / (1.0 if total is None else float(root_mean_square(total)))
        kept = 1 - float(hyper.lr) * hyper.weight_decay
        values = (rate, kept, hyper.beta1, hyper.beta2, float(hyper.eps), hyper.weight_decay, hyper.damping)
        return torch.tensor(values, dtype=self.work_dtype)


def _loop(
    p: Tensor, g: Tensor, m: Tensor, v: Tensor, numbers: Tensor, rule: Rule, decays: bool, maximize: bool, mode: int
) -> tuple[Tensor, Tensor]:
    """One tensor: the step (or, by `mode`, no step), and κ² Σ η² and the count of live coordinates of the new v."""
    rate, kept, beta1, beta2, eps, decay, kappa = numbers.unbind()
    new = v
    if mode != _MEASURE:
        g = -g if maximize else g
        if decays and not rule.decoupled:
            g = g + decay * p
        new = (1 - beta2) * g * g
    if mode == _UPDATE:
        new = beta2 * v + new
        # A coordinate without history takes its own first v.
        used = torch.where(v > 0, v, new) if rule.delayed else new
        m.add_((1 - beta1) * (g - m))
        weight = p * kept if decays and rule.decoupled else p
        p.copy_(weight - rate * m / (used.sqrt() + eps))
        v.copy_(new)
    alive = new > 0
    eta = torch.where(alive, kappa / (new.sqrt() + eps), 0.0)
    return (eta * eta).sum(), alive.sum()


@cache
def _variant(variant: Variant) -> Callable[..., Any]:
    # torch counts recompilations per code object, and gives up after some: every variant gets one of its own.
    code = _loop.__code__.replace(co_name=f"_loop_{abs(hash(variant))}")
    return torch.compile(FunctionType(code, _loop.__globals__), dynamic=True, fullgraph=True)


@cache
def have_compiler() -> bool:
    """Whether there is something that compiles C++."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++") if name)
