"""Schedules: pure functions of the step counter, in device tensors, never multiplied up."""

import math

import torch
from torch import Tensor


def progress(step: Tensor, span: float) -> Tensor:
    """How much of `span` steps is done, from 0 to 1, in fp32."""
    return (step.to(torch.float32) / max(span, 1.0)).clamp(0.0, 1.0)


def geometric(done: Tensor, final: float) -> Tensor:
    """From 1 to `final` by equal factors: final^done (β of Algorithm 1)."""
    return torch.exp(done * math.log(final))


def cubic(done: Tensor, start: Tensor | float, end: float) -> Tensor:
    """From `start` to `end`, fast first and gently at the end: end + (start − end)(1 − done)³."""
    return end + (start - end) * (1.0 - done) ** 3
