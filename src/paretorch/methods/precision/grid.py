"""The fixed-point grid of chapter 5: p bits of value ±2^(1−j) are the odd multiples of 2^(1−p) within ±(2 − 2^(1−p)).

p = 1: ±1. p = 2: ±0.5, ±1.5. Zero is on no grid; it exists as p = 0. A tie goes up: Q(0, p) = 2^(1−p).

A layer's grid may be multiplied by a power of two, 2^k Q(w / 2^k, p). The printed grid has k = 0. Weights of a trained network lie around
0.1, so that on it two bits say no more than a sign. Normal weights have the least squared error with p bits if the range 2^(k+1) of the
grid is about 2 deviations at two bits, 2.7 at four and 3.8 at eight. Since k is a whole number, and too small a range costs more than too
large a one:

    k = log₂ rms(w) + 0.6 log₂(p / 2), rounded

The few weights beyond the range are clipped. While precisions are searched for, k follows the weights (those that are kept, where masks
are learned beside); it moves when it is off by more than 0.6.
"""

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor

from paretorch.core.attach.sites import Site
from paretorch.core.step.sample import some, stride_for
from paretorch.edits.scale import MAX_BITS as MAX_BITS
from paretorch.edits.scale import digits
from paretorch.edits.scale import power_of_two as power_of_two  # part of the grid's arithmetic
from paretorch.errors import ConfigError
from paretorch.support.arithmetic import exact, widened
from paretorch.support.sharded import whole

LOG2 = math.log(2.0)
_SLACK = 1e-4  # so that a precision that is a whole number does not fall to the one below by rounding


def require_digits(name: str, dtype: torch.dtype, bits: int) -> None:
    """Refuse more bits than a number of this dtype has binary digits: the last ones would be rounded away, and count."""
    most = digits(dtype)
    if bits > most:
        raise ConfigError(
            f"{name} is {dtype}, which holds at most {most} bits, not {bits}: give fewer, or compress model.float()"
        )


def quantize(weight: Tensor, bits: Tensor) -> Tensor:
    """Q(w, p): the nearest value with p bits; 0 where p = 0."""
    unit = power_of_two(1 - bits)
    top = 2.0 - unit
    value = (torch.floor(weight / (2 * unit)) * 2 + 1) * unit
    return torch.where(bits > 0, torch.minimum(torch.maximum(value, -top), top), 0.0)


def real_bits(s: Tensor) -> Tensor:
    """p(s) = 1 + log₂(1 + e⁻ˢ), the precision whose half step is σ(s)."""
    return 1.0 + torch.nn.functional.softplus(-s) / LOG2


def s_of_bits(bits: float | Tensor) -> Tensor:
    """The inverse: s = −ln(2^(p−1) − 1)."""
    p = widened(bits) if isinstance(bits, Tensor) else torch.as_tensor(bits, dtype=torch.float64)
    return -torch.log(torch.expm1((p - 1.0) * LOG2)).to(torch.float32)


def whole_bits(real: Tensor, allowed: tuple[int, ...] = (), rounding: str = "floor") -> Tensor:
    """Integers from real precisions: rounded down (default) or to the nearest; only `allowed` ones where given."""
    if not allowed:
        whole = torch.floor(real + _SLACK) if rounding == "floor" else torch.round(real)
        return whole.clamp(1, MAX_BITS).to(torch.int32)
    levels = torch.tensor(sorted(allowed), device=real.device, dtype=torch.float32)
    edges = levels - _SLACK if rounding == "floor" else torch.cat([levels[:1], (levels[1:] + levels[:-1]) / 2])
    index = (torch.bucketize(real, edges, right=True) - 1).clamp_min(0)
    return levels[index].to(torch.int32)


def level_above(bits: float, allowed: tuple[int, ...] = ()) -> int:
    """The least level that is not below `bits`, or the largest: what a generous target may raise a weight to."""
    levels = sorted(allowed) or list(range(1, MAX_BITS + 1))
    return next((level for level in levels if level >= bits), levels[-1])


_MOST = 60
_STEADY = 0.6  # above a half, so that a layer at the border between two scales does not go to and fro
_SEEN = 2048  # weights of a layer: its deviation to 2 %


def check_scale(scale: str | int) -> None:
    if not (scale in ("fit", "auto") or (type(scale) is int and abs(scale) <= _MOST)):
        raise ConfigError(f'scale={scale!r}: use "fit", "auto", or an exponent from -{_MOST} to {_MOST}')


def scale_offset(bits: float, zero_precision: bool = False) -> float:
    """How far k is ahead of log₂ rms(w).

    With zero precision, weights above 2^(k−1) keep a bit at least: below one bit, 2^(k−1) must be so large that they are few.
    """
    offset = 0.6 * math.log2(max(bits, 1.3) / 2.0)
    if zero_precision and bits < 1.0:
        offset = max(offset, 1.5 + math.log2(NormalDist().inv_cdf(1.0 - bits / 2.0)))
    return offset


def exponent_for(site: Site, scale: str | int, offset: float) -> int:
    """k: as given; "auto": what suits the weights; "fit": 0, or as much as it takes for the weights to fit."""
    weight = site.weight.detach().to(torch.float32)
    top = float(weight.abs().max())
    if scale == "auto":
        rms = float(weight.square().mean().sqrt())
        if not 0.0 < rms < math.inf:  # squares beyond fp32
            rms = float(exact(weight).square().mean().sqrt())
        return max(-_MOST, min(round(math.log2(rms) + offset), _MOST)) if rms > 0 else 0
    if scale == "fit":
        return max(math.ceil(math.log2(top)) - 1, 0) if top > 0 else 0
    assert isinstance(scale, int)
    if top > 2.0 ** (scale + 1):
        raise ConfigError(
            f'{site.name} has weights up to {top:.3g}, outside the grid of ±{2.0 ** (scale + 1):g}: use scale="auto", or exclude it'
        )
    return scale


class Scaled(NamedTuple):
    """A layer whose k follows its weights: those that are kept, as 0 and 1, where some are dropped beside.

    What is kept may be a function, so that the masks of all layers are not there at once.
    """

    power: Tensor
    offset: float
    weight: Tensor
    kept: Tensor | Callable[[], Tensor | None] | None = None


def update_powers(layers: list[Scaled]) -> None:
    """k of every layer to where its weights are now, in place: one sum per layer, and a handful of operations for all."""
    if not layers:
        return
    powers = [layer.power for layer in layers]
    off = torch.log2(_sizes(layers)) - torch.stack(powers)
    moves = torch.where((off.abs() > _STEADY) & off.isfinite(), torch.round(off), 0.0)
    torch._foreach_add_(powers, list(moves.clamp(-_MOST, _MOST).to(torch.int32).unbind()))


def _sizes(layers: list[Scaled]) -> Tensor:
    """What log₂ is k of: the root mean square of some of each layer's weights, times 2^offset."""
    seen, kept = [], []
    for layer in layers:
        weight = whole(layer.weight)
        every = stride_for(weight.numel(), _SEEN)
        seen.append(some(weight, every, weight))
        mask = layer.kept() if callable(layer.kept) else layer.kept
        kept.append(None if mask is None else some(mask, every, weight).contiguous())
    counts = [len(own) for own in seen]
    flat = torch.cat(seen).to(torch.float32)
    if all(own is None for own in kept):
        norms = list(torch._foreach_norm(flat.split(counts)))
        torch._foreach_mul_(norms, [2.0**layer.offset * n**-0.5 for layer, n in zip(layers, counts, strict=True)])
        return torch.stack(norms)
    open_now = [flat.new_ones(n) if own is None else own for own, n in zip(kept, counts, strict=True)]
    flags = torch.cat(open_now).to(torch.float32)
    norms = list(torch._foreach_norm((flat * flags).split(counts)))
    torch._foreach_mul_(norms, [2.0**layer.offset for layer in layers])
    left = torch.stack(torch._foreach_norm(flags.split(counts), 1))  # of zeros and ones: how many are ones
    return torch.stack(norms) * left.clamp_min(1.0) ** -0.5
