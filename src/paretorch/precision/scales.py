"""Which power of two a layer's grid is multiplied by.

    2^k Q(w / 2^k, p)

The printed grid has k = 0: ±1 at one bit, ±0.5 and ±1.5 at two. Weights of a trained network lie around 0.1, so that on it two bits say
no more than a sign. With k chosen for the least Σ (w − 2^k Q(w / 2^k, p))² over the layer's weights, two bits are four values
that are used; the few weights beyond ±2^(k+1) are clipped. With zero precision a smaller scale leaves fewer weights nearer to zero
than to their grid, so that it is not taken below what the bits asked for allow.
"""

import math

import torch
from torch import Tensor

from paretorch.core.sites import Site
from paretorch.errors import ConfigError
from paretorch.precision.grid import quantize

_TRIED = 8  # powers of two below the one that all weights fit into


def check_scale(scale: str | int) -> None:
    if not (scale in ("fit", "auto") or (type(scale) is int and -60 <= scale <= 60)):
        raise ConfigError(f'scale={scale!r}: use "fit", "auto", or an exponent from -60 to 60')


def exponent_for(site: Site, scale: str | int, bits: float, zero_precision: bool = False) -> int:
    """k: as given; "auto": least error with so many bits; "fit": 0, or as much as it takes for the weights to fit."""
    weight = site.weight.detach().to(torch.float32)
    top = float(weight.abs().max())
    needed = math.ceil(math.log2(top)) - 1 if top > 0 else 0
    if scale == "fit":
        return max(needed, 0)
    if isinstance(scale, int):
        if top > 2.0 ** (scale + 1):
            raise ConfigError(
                f'{site.name} has weights up to {top:.3g}, outside the grid of ±{2.0 ** (scale + 1):g}: use scale="auto", or exclude it'
            )
        return scale
    tried = [needed]
    while len(tried) < _TRIED and not (zero_precision and _least_bits(weight, tried[-1] - 1) > bits):
        tried.append(tried[-1] - 1)
    return min(tried, key=lambda k: _error(weight, k, max(round(bits), 1), zero_precision))  # of equals the largest


def _least_bits(weight: Tensor, k: int) -> float:
    """The average bits if all weights that are not nearer to zero keep one."""
    return float((weight.abs() > 2.0 ** (k - 1)).to(torch.float32).mean())


def _error(weight: Tensor, k: int, bits: int, zero_precision: bool) -> float:
    error = weight - 2.0**k * quantize(weight / 2.0**k, torch.tensor(bits, device=weight.device))
    return float((torch.minimum(error.abs(), weight.abs()) if zero_precision else error).square().sum())
