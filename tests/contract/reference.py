"""The formulas, literally: what the network must compute, written from the thesis and with no code of the library."""

import math

import torch
from torch import Tensor

from paretorch import SMOL, ContinuousSparsification
from paretorch.core.method import Method


def gate(name: str, s: Tensor, beta: float) -> Tensor:
    if name == "sigmoid":
        return 1 / (1 + torch.exp(-beta * s))
    if name == "erf":
        return (1 + torch.erf(beta * s)) / 2
    if name == "arctan":
        return (1 + 2 / math.pi * torch.atan(beta * s)) / 2
    return (1 + s / (1 / beta + s.abs() ** 2) ** 0.5) / 2


def noise(seed: int, name: str, step: int, shape: torch.Size) -> Tensor:
    """The hash of core/noise.py in Python's integers, which never wrap by themselves."""
    stream = 0x811C9DC5 ^ seed
    for byte in name.encode():
        stream = ((stream ^ byte) * 0x01000193) % 2**32
    key = (step + stream * 0x6A09E667F3BCC909 + 1) * 0x1E3779B97F4A7C15 % 2**64

    def epsilon(place: int) -> float:
        x = (place ^ key) * 0x3243F6A8885A308D % 2**64
        x = ((x ^ (x >> 32)) * 0x3F58476D1CE4E5B9 + key) % 2**64
        x = (x ^ (x >> 32)) * 0x14D049BB133111EB % 2**64
        return ((x >> 41) + 0.5) / 2**22 - 1

    return torch.tensor([epsilon(place) for place in range(math.prod(shape))]).view(shape)


def quantized(w: Tensor, p: Tensor) -> Tensor:
    """The nearest of all 2^p values (2j + 1)·2^(1−p), by trying each; p = 0 is 0; ties go up."""
    flat, bits = w.flatten().double(), p.expand(w.shape).flatten()
    out = torch.zeros_like(flat)
    for b in bits.unique().tolist():
        if b == 0:
            continue
        grid = (torch.arange(2 ** int(b), dtype=torch.float64) * 2 + 1 - 2**b) * 2.0 ** (1 - b)
        here = bits == b
        distance = (flat[here, None] - grid).abs()
        best = len(grid) - 1 - distance.flip(1).argmin(1)
        out[here] = grid[best]
    return out.float().view(w.shape)


def spread(method: Method, s: Tensor, shape: torch.Size) -> Tensor:
    """One decision a group, laid out over the weight."""
    if method.group in ("weight", "channel", "layer"):
        return s.expand(shape)
    if method.group == "network":
        return s.view((1,) * len(shape)).expand(shape)
    if isinstance(method.group, tuple):
        block = method.group + tuple(shape[len(method.group) :])
        index = torch.meshgrid(*(torch.arange(n) // b for n, b in zip(shape, block, strict=True)), indexing="ij")
        return s[index]
    return s[torch.arange(math.prod(shape)).view(shape) % 5]  # the callable of cases.py


def relaxed(
    methods: tuple[Method, ...],
    decisions: dict[str, Tensor],
    w: Tensor,
    *,
    beta: float,
    shift: float,
    epsilon: Tensor | None,
    exponent: int,
    together: bool,
) -> Tensor:
    """While searching: c · σ(β(s + τ)) ⊙ (w + 2^k σ(s) ε)."""
    for method in sorted(methods, key=lambda one: isinstance(one, ContinuousSparsification)):
        if isinstance(method, SMOL):
            if epsilon is not None:
                w = w + 2.0**exponent * torch.sigmoid(spread(method, decisions["precision"], w.shape)) * epsilon
        elif isinstance(method, ContinuousSparsification):
            scale = 1 / float(gate(method.gate, torch.tensor(method.init), 1.0)) if method.start != "saliency" else 1.0
            if together:
                scale = 2.0 ** round(math.log2(scale))
            w = w * gate(method.gate, spread(method, decisions["sparsity"], w.shape) + shift, beta) * scale
    return w
