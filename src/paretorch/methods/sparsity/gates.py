"""Soft steps: b̂(β, s) → 1{s ≥ 0} as the temperature β grows (section 4.2.4; arctan with the factor that makes it a gate)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Gate:
    """A gate and its slope in s."""

    value: Callable[[Tensor, Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]

    def __deepcopy__(self, memo: dict[int, Any]) -> "Gate":
        return self  # a copy of a mask has the same gate, not another one like it


def _sigmoid_slope(s: Tensor, beta: Tensor) -> Tensor:
    m = torch.sigmoid(beta * s)
    return beta * m * (1 - m)


def _algebraic(s: Tensor, beta: Tensor) -> Tensor:
    return 0.5 * (1 + s / torch.sqrt(1 / beta + s * s))


GATES = {
    "sigmoid": Gate(lambda s, beta: torch.sigmoid(beta * s), _sigmoid_slope),
    "erf": Gate(
        lambda s, beta: 0.5 * (1 + torch.erf(beta * s)),
        lambda s, beta: beta / math.sqrt(math.pi) * torch.exp(-((beta * s) ** 2)),
    ),
    "arctan": Gate(
        lambda s, beta: 0.5 * (1 + 2 / math.pi * torch.arctan(beta * s)),
        lambda s, beta: beta / math.pi / (1 + (beta * s) ** 2),
    ),
    "algebraic": Gate(_algebraic, lambda s, beta: 0.5 / beta / (1 / beta + s * s) ** 1.5),
}
