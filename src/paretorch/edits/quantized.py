"""The quantizer of activations, and the plain module that applies it.

    Q(u, p) = low + k·(high − low)/(2^p − 1),   k the nearest of 0 … 2^p − 1,   u clipped to [low, high] first

These are PACT's 2^p levels with both ends among them, so that the zeros of a ReLU stay zeros. The thesis names no
quantizer; this one errs by at most M/(2(2^p − 1)), within the noise M/2·σ(s) = M/2^p that p bits were learned with.
Gradients are PACT's: straight through inside of the range, to the ends of the range from outside of it.
"""

import torch
from torch import Tensor, nn


def clip(u: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """u within [low, high], with gradients for both ends."""
    return torch.minimum(torch.maximum(u, low.to(u.dtype)), high.to(u.dtype))


def quantize_uniform(clipped: Tensor, low: Tensor, high: Tensor, steps: Tensor, training: bool) -> Tensor:
    """The nearest of the steps + 1 equally spaced levels from low to high; while training, straight through."""
    low, wide = low.detach(), (high - low).detach()
    position = (clipped.detach().to(torch.float32) - low) / wide
    value = (low + torch.round(position * steps) / steps * wide).to(clipped.dtype)
    return value + (clipped - clipped.detach()) if training else value


def steps_of(bits: Tensor) -> Tensor:
    """2^p − 1."""
    return (1 << bits.to(torch.int32)) - 1


class QuantizedActivation(nn.Module):
    """`inner`, then Q. An ordinary module: two buffers, no state of a plan.

    steps: 2^p − 1 for each group, flat. bounds: low and high. `grid` is the groups' shape, which broadcasts against a
    feature map. It trains straight through, and exports as plain operations.
    """

    steps: Tensor
    bounds: Tensor

    def __init__(self, inner: nn.Module, steps: Tensor, bounds: Tensor) -> None:
        super().__init__()
        self.inner, self.grid = inner, tuple(steps.shape)
        self.register_buffer("steps", steps.to(torch.int32).flatten())
        self.register_buffer("bounds", bounds)
        self.train(inner.training)

    @property
    def bits(self) -> Tensor:
        """p of each group, on the grid."""
        return torch.log2(self.steps.double() + 1).round().to(torch.int32).view(self.grid)

    def forward(self, x: Tensor) -> Tensor:
        low, high = self.bounds.to(torch.float32).unbind()
        steps = self.steps.view(self.grid).to(torch.float32)
        return quantize_uniform(clip(self.inner(x), low, high), low, high, steps, self.training)

    def extra_repr(self) -> str:
        low, high = self.bounds.tolist()
        return f"{low:g} to {high:g}, {float(self.bits.double().mean()):.3g} bits"
