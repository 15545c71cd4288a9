"""The algorithms of thesis chapter 6, transcribed literally: one loop over the network as one long vector.

Slow on purpose. `w` and `g` are lists of real tensors (the whole network); the functions return the next `w`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Memory:
    t: int = 0
    m: dict[int, Tensor] = field(default_factory=dict)
    v: dict[int, Tensor] = field(default_factory=dict)


@dataclass
class Settings:
    lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    maximize: bool = False


def avagrad(w: list[Tensor], g: list[Tensor | None], s: Settings, mem: Memory, decoupled: bool = False) -> list[Tensor]:
    """Algorithm AvaGrad, with the first-step rule; the norm is over coordinates with history."""
    mem.t += 1
    w, old, new, m = _moments(w, g, s, mem, decoupled)
    live = torch.cat([v.flatten() for v in old])
    if not bool((live > 0).any()):
        live = torch.cat([v.flatten() for v in new])
    eta = 1 / (live[live > 0].sqrt() + s.eps)
    norm = (eta / math.sqrt(eta.numel())).norm() if eta.numel() else torch.ones(())
    return [_descend(w[i], g[i], s.lr / norm, _delayed(old[i], new[i]), m[i], s.eps) for i in range(len(w))]


def avagradw(w: list[Tensor], g: list[Tensor | None], s: Settings, mem: Memory) -> list[Tensor]:
    return avagrad(w, g, s, mem, decoupled=True)


def delayed_adam(w: list[Tensor], g: list[Tensor | None], s: Settings, mem: Memory) -> list[Tensor]:
    mem.t += 1
    w, old, new, m = _moments(w, g, s, mem, False)
    return [_descend(w[i], g[i], s.lr, _delayed(old[i], new[i]), m[i], s.eps) for i in range(len(w))]


def annealed_adam(
    w: list[Tensor],
    g: list[Tensor | None],
    s: Settings,
    mem: Memory,
    horizon: int = 100,
    p1: float = 0,
    p2: float = 0.5,
) -> list[Tensor]:
    mem.t += 1
    w, _, new, m = _moments(w, g, s, mem, False)
    eps = s.eps * horizon**p1 * mem.t**p2
    return [_descend(w[i], g[i], s.lr * eps / math.sqrt(horizon), new[i], m[i], eps) for i in range(len(w))]


def _moments(
    w: list[Tensor], g: list[Tensor | None], s: Settings, mem: Memory, decoupled: bool
) -> tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]]:
    """The (decayed) weights, v of the last step, v and m of this one. Tensors without a gradient are not changed."""
    weights, old, new, first = [], [], [], []
    for i, (wi, gi) in enumerate(zip(w, g, strict=True)):
        v = mem.v.setdefault(i, torch.zeros_like(wi))
        m = mem.m.setdefault(i, torch.zeros_like(wi))
        old.append(v)
        if gi is not None:
            gi = -gi if s.maximize else gi
            if decoupled:
                wi = wi - s.lr * s.weight_decay * wi
            else:
                gi = gi + s.weight_decay * wi
            mem.m[i] = m = s.beta1 * m + (1 - s.beta1) * gi
            mem.v[i] = v = s.beta2 * v + (1 - s.beta2) * gi * gi
        weights.append(wi)
        new.append(v)
        first.append(m)
    return weights, old, new, first


def _delayed(old: Tensor, new: Tensor) -> Tensor:
    return torch.where(old > 0, old, new)


def _descend(w: Tensor, g: Tensor | None, rate: float | Tensor, v: Tensor, m: Tensor, eps: float) -> Tensor:
    return w if g is None else w - rate * m / (v.sqrt() + eps)
