"""Weights as integer codes on the steps that post-training found, trained on straight through.

    W = Δ c(θ/Δ),   c(x) = sign(x) ⌊|x| + ½ − b⌋ if |x| ≥ ½ + a, else 0          ∂L/∂θ = ∂L/∂W

The file is entropy coded, so that a code costs what it is rare. With steps that follow the price of a bit (Δ² = 6/ln 2 · price / curvature,
`paretorch.workflows.posttraining.solver`), the code of least error + price · bits has the thresholds above, with

    a = ½ μ (bits(1) − bits(0)),   b = ½ μ (bits(k + 1) − bits(k)) for k ≥ 1,   μ = ln 2 / 6

in every layer: a is the dead zone that makes zeros. A larger μ makes a smaller file, continuously, which is how training keeps to the budget.

Steps are learned too if many weights share one: Δ = Δ₀ exp(κ y), ∂L/∂y = κ Σ ∂L/∂W ⊙ W, as in learned step sizes (LSQ) with the codes held. κ = 1/(6 Δ₀) lets an
adaptive optimizer change a step by a sixth of what it moves a latent, both relative to Δ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from paretorch.support.arithmetic import exact

MU = math.log(2) / 6
"""μ at the price that the steps were made for."""
_MOST_DEAD, _MOST_SHIFT = 2.0, 0.45  # of a step
_MOST_MU = 64 * MU
_HALVINGS = 14
_GROWTH = 1 / 6
_SHARED = 128  # weights per step: with fewer, what learned steps add to the file is not worth it
_WIDE = 2**16  # values of codes that are counted in a table
_INSIDE = 0.02  # of a step, that latents keep from the ends of their code
_WITHIN = 0.5  # how far latents go from their code to the dense weight


@dataclass(eq=False)
class CodedWeight:
    """One weight of the student.

    Args:
        weight: What the network computes with: steps times codes.
        latent: θ, in fp32.
        base: Δ₀, in a shape that broadcasts with the weight.
        growth: y, of the same shape; None if steps stay.
        zero_bits: bits(1) − bits(0).
        tail_bits: bits(k + 1) − bits(k) for k ≥ 1.
    """

    weight: nn.Parameter
    latent: nn.Parameter
    base: Tensor
    growth: nn.Parameter | None
    zero_bits: float
    tail_bits: float

    @property
    def kappa(self) -> float:
        """κ, by the mean of the steps."""
        return _GROWTH / max(float(self.base.mean()), 1e-30)

    @property
    def steps(self) -> Tensor:
        """Δ, in bfloat16 values."""
        if self.growth is None:
            return self.base
        return (self.base * torch.exp(self.kappa * self.growth.detach())).bfloat16().float()

    def pull(self) -> None:
        """Hand the gradient of the coded weight to what it is made of."""
        gradient = self.weight.grad
        if gradient is None:
            return
        self.latent.grad = gradient.to(self.latent.dtype)
        if self.growth is not None:
            pull = self.latent.grad * self.weight.detach()
            shared = [i for i, size in enumerate(self.base.shape) if size == 1]
            self.growth.grad = self.kappa * pull.sum(shared, keepdim=True)
        self.weight.grad = None

    def parameters(self) -> list[nn.Parameter]:
        """What the optimizer trains, the latent first."""
        return [self.latent] if self.growth is None else [self.latent, self.growth]

    @torch.no_grad()
    def write(self, mu: float) -> None:
        """Put the coded values into the network."""
        self.weight.copy_(self.codes(mu) * self.steps)

    def codes(self, mu: float) -> Tensor:
        """Return c(θ/Δ)."""
        scaled = self.latent.detach() / self.steps
        sizes = scaled.abs()
        dead, shift = zones(self.zero_bits, self.tail_bits, mu)
        found = (sizes + (0.5 - shift)).floor_().clamp_(min=1.0)
        # Adding 0 turns −0, which would be another value in the file, into 0.
        return found.mul_(sizes >= 0.5 + dead).copysign_(scaled).add_(0.0)


def zones(zero_bits: float, tail_bits: float, mu: float) -> tuple[float, float]:
    """Return (a, b), in steps."""
    return min(0.5 * mu * zero_bits, _MOST_DEAD), min(0.5 * mu * tail_bits, _MOST_SHIFT)


def code_bits(codes: Tensor) -> tuple[float, float]:
    """Return what a code of one costs more than zero, and each further one, from how often they are."""
    sizes = codes.abs().flatten()
    zeros, ones = int((sizes == 0).sum()), int((sizes == 1).sum())
    others = sizes[sizes > 0]
    mean = float(exact(others).mean()) if len(others) else 1.0
    tail = -math.log2(max(1.0 - 1.0 / max(mean, 1.0 + 1e-6), 1e-6))  # of a geometric distribution with that mean
    return max(0.0, math.log2((zeros + 1.0) / (0.5 * ones + 1.0))), tail


def entropy_bits(codes: Tensor) -> float:
    """Return what the codes take with one table of frequencies."""
    low, high = float(codes.min()), float(codes.max())
    if high - low < _WIDE:
        counts = exact(torch.bincount((codes - low).long().flatten()))
    else:  # of a generous budget: a table of all values between would not fit into memory
        counts = exact(codes.flatten().unique(return_counts=True)[1])
    counts = counts[counts > 0]
    return float(-(counts * (counts / counts.sum()).log2()).sum())


class CodedWeights:
    """All coded weights of a student, and how many bytes they take.

    Args:
        student: The rounded network. Its coded weights get their gradients from autograd as usual.
        dense: The network that it was rounded from.
        steps: By the names of the weights.
        size: Bytes of the student's file now.
    """

    def __init__(self, student: nn.Module, dense: nn.Module, steps: Mapping[str, Tensor], size: int) -> None:
        ours, theirs = dict(student.named_parameters()), dict(dense.named_parameters())
        self.mu = MU
        self.weights = {name: _coded(ours[name], theirs[name], step) for name, step in steps.items()}
        own = {id(one.weight) for one in self.weights.values()}
        self.others = [p for p in student.parameters() if id(p) not in own and p.is_floating_point()]
        """Parameters that are trained as they are: norms and biases."""
        self._rest = size - self._code_bytes()

    def parameters(self) -> list[nn.Parameter]:
        """What the optimizer trains."""
        return [p for one in self.weights.values() for p in one.parameters()] + self.others

    @torch.no_grad()
    def write(self) -> None:
        """Put the coded values into the network."""
        for one in self.weights.values():
            one.write(self.mu)

    def pull(self) -> None:
        """Hand the gradients of the coded weights to the latents."""
        for one in self.weights.values():
            one.pull()

    def _code_bytes(self) -> float:
        return sum(entropy_bits(one.codes(self.mu)) for one in self.weights.values()) / 8

    @torch.no_grad()
    def expected(self) -> float:
        """Return about the bytes of the file, from the entropy of the codes."""
        return self._rest + self._code_bytes()

    def learn_size(self, size: int) -> None:
        """Correct what is expected by the bytes of a file that was measured now."""
        self._rest += size - self.expected()

    @torch.no_grad()
    def fit(self, aim: float) -> None:
        """Choose the least μ at which no more than `aim` bytes are expected, about; the largest if none is enough."""
        low, high = 0.0, _MOST_MU
        self.mu = low
        if self.expected() <= aim:
            return
        for _ in range(_HALVINGS):
            self.mu = (low + high) / 2 if low else high / 4
            if self.expected() > aim:
                low = self.mu
            else:
                high = self.mu
        self.mu = high

    @torch.no_grad()
    def zeros_and_bits(self) -> tuple[float, float]:
        """Return the share of zeros and the mean bits of all coded weights."""
        count = sum(one.latent.numel() for one in self.weights.values())
        zeros = sum(int((one.codes(self.mu) == 0).sum()) for one in self.weights.values())
        return zeros / max(count, 1), 8 * self._code_bytes() / max(count, 1)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {
            "mu": self.mu,
            "rest": self._rest,
            "values": [p.detach() for p in self.parameters()],
        }

    @torch.no_grad()
    def load(self, state: Mapping[str, Any]) -> None:
        """Take up the state of a checkpoint, or of `copy_state`."""
        self.mu, self._rest = state["mu"], state["rest"]
        for p, value in zip(self.parameters(), state["values"], strict=True):
            p.copy_(value)
        self.write()

    def copy_state(self) -> dict[str, Any]:
        """Return the state in memory of its own, to come back to."""
        state = self.state()
        state["values"] = [value.clone() for value in state["values"]]
        return state


@torch.no_grad()
def _coded(weight: nn.Parameter, dense: Tensor, step: Tensor) -> CodedWeight:
    """Return a weight whose latents give its codes, and lie towards the dense weights within them."""
    step = step.to(weight.device, torch.float32)
    codes = (weight.detach().float() / step).round()
    zero_bits, tail_bits = code_bits(codes)
    dead, shift = zones(zero_bits, tail_bits, MU)
    sizes, sign = codes.abs(), torch.where(codes == 0, dense.detach().float().sign(), codes.sign())
    low = torch.where(sizes <= 1, (0.5 + dead) * sizes, sizes - 0.5 + shift)
    high = torch.where(sizes == 0, 0.5 + dead, sizes + 0.5 + shift)
    wanted = torch.minimum(torch.maximum(dense.detach().float() / step * sign, low + _INSIDE), high - _INSIDE)
    # Many dense weights are beyond the ends of their code, which makes up for the errors of others. Latents just inside of an end would
    # leave their code at the first step of training.
    latent = (sizes + _WITHIN * (wanted - sizes)) * sign * step
    growth = nn.Parameter(torch.zeros_like(step)) if weight.numel() >= _SHARED * step.numel() else None
    return CodedWeight(weight, nn.Parameter(latent.contiguous()), step, growth, zero_bits, tail_bits)
