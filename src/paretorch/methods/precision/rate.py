"""What rounded weights cost once they are entropy coded: bits by a formula while searching, counted at the end.

A weight is kept as the code round(w/Δ). How many bits a code takes depends on the step Δ alone, not on a range: codes that are
rare cost more, zeros cost little. If the weights of a group follow a Laplace distribution with mean magnitude b, then with
q = exp(−Δ/b) a code is not zero with probability √q, and beyond that its magnitude is geometric, so that it takes

    H(Δ/b) = h(√q) + √q (1 + h(q)/(1 − q)) bits,   h(p) = −p log₂ p − (1 − p) log₂(1 − p)

For small steps that is log₂(2e b/Δ), one bit more for each halving of the step; for large ones it goes to 0.
"""

import math

import torch
from torch import Tensor

TABLE_BITS = 8.0  # what a file pays for each symbol of a table of frequencies, about
_CLASSES = 2.0  # tables of frequencies per doubling of the step relative to the weights
_MAX_CODE = 2**15
_SMALL_RATIO, _LARGE_RATIO = 2.0**-16, 64.0


def laplace_bits(ratio: Tensor) -> Tensor:
    """Bits per weight of Laplace weights, given the step over their mean magnitude."""
    rate = ratio.double().clamp(_SMALL_RATIO, _LARGE_RATIO)
    q, root = torch.exp(-rate), torch.exp(-rate / 2.0)
    return (_binary_entropy(root) + root * (1.0 + _binary_entropy(q) / -torch.expm1(-rate))).to(torch.float32)


def laplace_slope(ratio: Tensor) -> Tensor:
    """The change of `laplace_bits` per doubling of the step: −1 for small steps, 0 for large ones."""
    reach = 2.0**0.125
    return (laplace_bits(ratio * reach) - laplace_bits(ratio / reach)) / 0.25


def _binary_entropy(p: Tensor) -> Tensor:
    nats: Tensor = torch.xlogy(p, p) + torch.special.xlog1py(1.0 - p, -p)
    return -nats / math.log(2.0)


def coded_bits(codes: Tensor, levels: Tensor, kept: Tensor | None = None) -> float:
    """Bits of a tensor of codes: their entropy and the tables that say how frequent each is, or a fixed width if that is less.

    Args:
        codes: Whole numbers, as floats.
        levels: log₂ of the weights' magnitude over the step of each code. Codes of about the same level share a table.
        kept: 1 for codes that count, else 0.
    """
    table = torch.round(_CLASSES * levels.expand(codes.shape)).flatten()
    whole = codes.flatten().clamp(-_MAX_CODE, _MAX_CODE)
    if kept is not None:
        chosen = kept.expand(codes.shape).flatten() > 0
        table, whole = table[chosen], whole[chosen]
    if not whole.numel():
        return 0.0
    table = table.to(torch.int64) - int(table.min())
    low = int(whole.min())
    width = int(whole.max()) - low + 1
    counts = torch.bincount(table * width + (whole.to(torch.int64) - low), minlength=(int(table.max()) + 1) * width)
    counts = counts.view(-1, width).double()
    total = counts.sum(1)
    entropy = torch.xlogy(total, total).sum() - torch.xlogy(counts, counts).sum()
    own = float(entropy) / math.log(2.0) + TABLE_BITS * float((counts > 0).sum())
    return min(own, len(whole) * math.log2(width))


def short_steps(steps: Tensor, sizes: Tensor | float) -> Tensor:
    """The steps rounded down to a few binary digits: log₂(n) − 5 for a group of n weights, at least 3.

    A step that is 6 % too small costs 0.09 bits, and saves as much error. What all digits would cost is more, in a small group.
    """
    digits = torch.log2(torch.as_tensor(sizes, dtype=torch.float32, device=steps.device)).sub(5.0).clamp(3.0, 20.0)
    mantissa, exponent = torch.frexp(steps)
    unit = torch.exp2(torch.floor(digits) + 1.0)  # a mantissa of frexp begins behind the point
    return torch.ldexp(torch.floor(mantissa * unit) / unit, exponent)
