"""What rounded weights cost once they are entropy coded: bits by a formula while searching, counted at the end.

A weight is kept as the code round(w/Δ). How many bits a code takes depends on the step Δ alone, not on a range: codes that are
rare cost more, zeros cost little. If the weights of a group follow a Laplace distribution with mean magnitude b, then with
q = exp(−Δ/b) a code is not zero with probability √q, and beyond that its magnitude is geometric, so that it takes

    H(Δ/b) = h(√q) + √q (1 + h(q)/(1 − q)) bits,   h(p) = −p log₂ p − (1 − p) log₂(1 − p)

For small steps that is log₂(2e b/Δ), one bit more for each halving of the step; for large ones it goes to 0.
"""

import math
from collections.abc import Iterable
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from paretorch.support.arithmetic import widened, widest_float

TABLE_BITS = 8.0  # what a file pays for each symbol of a table of frequencies, about
_CLASSES = 2.0  # tables of frequencies per doubling of the step relative to the weights
_MOST_CLASSES = 16
_WIDE = 6.0  # log₂ of the magnitude over the step, above which a code has digits that are random
_MAX_CODE = 2**10
_SMALL_RATIO, _LARGE_RATIO = 2.0**-16, 64.0


def laplace_bits(ratio: Tensor) -> Tensor:
    """Bits per weight of Laplace weights, given the step over their mean magnitude."""
    rate = widened(ratio).clamp(_SMALL_RATIO, _LARGE_RATIO)
    q, root = torch.exp(-rate), torch.exp(-rate / 2.0)
    return (_binary_entropy(root) + root * (1.0 + _binary_entropy(q) / -torch.expm1(-rate))).to(torch.float32)


def laplace_slope(ratio: Tensor) -> Tensor:
    """The change of `laplace_bits` per doubling of the step: −1 for small steps, 0 for large ones."""
    reach = 2.0**0.125
    return (laplace_bits(ratio * reach) - laplace_bits(ratio / reach)) / 0.25


def _binary_entropy(p: Tensor) -> Tensor:
    nats: Tensor = torch.xlogy(p, p) + torch.special.xlog1py(1.0 - p, -p)
    return -nats / math.log(2.0)


class Tally(NamedTuple):
    """What the bits of a part of a tensor follow from."""

    number: Tensor
    least: Tensor
    most: Tensor
    digits: Tensor
    """Binary digits that are stored as they are."""
    counts: Tensor
    """How often each symbol of each table occurs."""

    @classmethod
    def of(cls, codes: Tensor, levels: Tensor, kept: Tensor | None = None) -> "Tally":
        """Count.

        Args:
            codes: Whole numbers, as floats.
            levels: log₂ of the weights' magnitude over the step of each code. Codes of about the same level share a table.
            kept: 1 for codes that count, else 0.
        """
        own = torch.ones_like(codes) if kept is None else (kept.expand(codes.shape) > 0).to(codes.dtype)
        # A group of zeros has neither a magnitude nor a step.
        codes, levels = (
            torch.nan_to_num(codes, 0.0, 0.0, 0.0) * own,
            torch.nan_to_num(levels.expand(codes.shape), 0.0, 0.0, 0.0),
        )
        # The last binary digits of large codes are as good as random: they cost a bit each, and the tables stay small.
        digits = torch.floor(levels - _WIDE).clamp_min(0.0)
        short = torch.round(codes * torch.exp2(-digits)).clamp(-_MAX_CODE, _MAX_CODE)
        table = torch.round(_CLASSES * levels).clamp(-_MOST_CLASSES, _MOST_CLASSES) + _MOST_CLASSES
        place = (table * (2 * _MAX_CODE + 1) + short + _MAX_CODE).to(torch.int64).flatten()
        shape = (2 * _MOST_CLASSES + 1, 2 * _MAX_CODE + 1)
        counts = torch.zeros(math.prod(shape), dtype=widest_float(codes.device), device=codes.device)
        counts = counts.scatter_add_(0, place, own.flatten().to(counts.dtype)).view(shape)
        return Tally(own.sum(), codes.min(), codes.max(), (digits * own).sum(), counts)

    def add(self, other: "Tally") -> "Tally":
        """Of both parts together."""
        least, most = torch.minimum(self.least, other.least), torch.maximum(self.most, other.most)
        return Tally(self.number + other.number, least, most, self.digits + other.digits, self.counts + other.counts)


def coded_bits(parts: Iterable[Tally], share: float = 1.0) -> Tensor:
    """Bits of a tensor of codes: their entropy and the tables that say how frequent each is, or a fixed width if that is less.

    Args:
        parts: The tensor's parts, counted one by one.
        share: How many codes each of these stands for.
    """
    number, least, most, digits, counts = reduce(Tally.add, parts)
    total = counts.sum(1)
    entropy = (torch.xlogy(total, total).sum() - torch.xlogy(counts, counts).sum()) / math.log(2.0)
    coded: Tensor = share * (entropy + digits) + TABLE_BITS * (counts > 0).sum()
    width = number * torch.log2(most - least + 1.0)
    return torch.minimum(coded, share * widened(width))


def short_steps(steps: Tensor, sizes: Tensor | float) -> Tensor:
    """The steps rounded down to a few binary digits: log₂(n) − 5 for a group of n weights, at least 3.

    A step that is 6 % too small costs 0.09 bits, and saves as much error. What all digits would cost is more, in a small group.
    """
    return cut_digits(steps, digit_unit(sizes))


def digit_unit(sizes: Tensor | float) -> Tensor | float:
    """2 to the number of digits behind the point that the mantissa of a step has, for groups of so many weights."""
    if isinstance(sizes, Tensor):  # a mantissa of frexp begins behind the point
        unit: Tensor = torch.exp2(torch.floor(torch.log2(sizes) - 5.0).clamp(3.0, 20.0) + 1.0)
        return unit
    return 2.0 ** (min(max(math.floor(math.log2(sizes) - 5.0), 3), 20) + 1)


def cut_digits(steps: Tensor, unit: Tensor | float) -> Tensor:
    """The steps rounded down to so many digits."""
    mantissa, exponent = torch.frexp(steps)
    found: Tensor = torch.ldexp(torch.floor(mantissa * unit) / unit, exponent)
    return torch.nan_to_num(found, 1.0, 1.0, 1.0).clamp_min(1e-30)  # of a group of zeros any step will do
