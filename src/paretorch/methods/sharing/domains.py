"""Where coefficients may lie, and decisions that give such coefficients at the start (chapter 3, relaxed search space).

real      any a ∈ ℝᵏ: the decisions themselves
simplex   a = softmax(s): weighted means of the templates
one-hot   a = e_j, j = argmax s, in the forward pass; the gradient is that of softmax(s) (straight-through)
"""

import math

import torch
from torch import Tensor

from paretorch.core.attach.templates import Shares, as_they_are

_FIRST_SHARE = 0.9  # of the template that a layer begins with, on the simplex


def on_simplex(decision: Tensor, hard: bool) -> Tensor:
    """Weighted means."""
    return torch.softmax(decision, -1)


def one_hot(decision: Tensor, hard: bool) -> Tensor:
    """One template a layer; the decision stays in the graph once rounded, with a zero gradient: DDP waits for it."""
    soft = torch.softmax(decision, -1)
    chosen = torch.zeros_like(soft).scatter(-1, decision.argmax(-1, keepdim=True), 1.0)
    return chosen + 0.0 * soft if hard else chosen + (soft - soft.detach())


DOMAINS: dict[str, Shares] = {"real": as_they_are, "simplex": on_simplex, "one-hot": one_hot}


def orthogonal(layers: int, templates: int, seed: int) -> Tensor:
    """A random layers × templates matrix Q with orthonormal columns (rows, where templates are more than layers)."""
    generator = torch.Generator().manual_seed(seed)
    tall = max(layers, templates)
    q, r = torch.linalg.qr(torch.randn(tall, min(layers, templates), generator=generator, dtype=torch.float64))
    q = q * torch.where(torch.diagonal(r) < 0, -1.0, 1.0)
    matrix: Tensor = q if layers >= templates else q.T.contiguous()
    return matrix


def in_turn(layers: int, templates: int) -> Tensor:
    """Logits by which layer l begins with template l mod k."""
    logits = torch.zeros(layers, templates, dtype=torch.float64)
    first = math.log(_FIRST_SHARE / (1 - _FIRST_SHARE) * max(templates - 1, 1))
    logits[torch.arange(layers), torch.arange(layers) % templates] = first
    return logits
