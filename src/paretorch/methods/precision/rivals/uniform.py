"""Uniform k-bit: every weight on the grid of chapter 5 with the same precision, straight through.

    W = 2^e Q(w / 2^e, k),   ∂W/∂w := 1,   w clipped to ±2^e (2 − 2^(1−k)),   Q as in `paretorch.methods.precision.grid`

What SMOL would do had it nothing to decide: the plainest quantization-aware training. The decision holds k itself: a
map of precisions that SMOL has found can be written into it (see `paretorch.methods.precision.shuffle`).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from paretorch.core.attach.sites import Site
from paretorch.core.groups import Grouping
from paretorch.methods.precision.grid import (
    MAX_BITS,
    check_scale,
    exponent_for,
    power_of_two,
    quantize,
    require_digits,
    scale_offset,
)
from paretorch.methods.precision.rivals.rival import Quantized, Rival, straight_through


@dataclass(frozen=True, kw_only=True)
class Uniform(Rival):
    """The same bits for every weight; 0 drops a layer.

    scale: of a layer's grid, 2^e: "auto" (what suits the weights at the start), "fit" (1, or larger where they
    do not fit into ±2), or the exponent e.
    """

    scale: str | int = "auto"

    per_layer: ClassVar[frozenset[str]] = frozenset({"bits", "scale"})
    widths: ClassVar[tuple[int, ...]] = tuple(range(MAX_BITS + 1))

    def check(self) -> None:
        super().check()
        check_scale(self.scale)

    def relax(self, site: Site, grouping: Grouping, seed: int, together: set[str]) -> "Fixed":
        require_digits(site.name, site.weight.dtype, self.bits)
        return Fixed(grouping, self.bits, site.weight.device, exponent_for(site, self.scale, scale_offset(self.bits)))


class Fixed(Quantized):
    """W = 2^e Q(w / 2^e, s), s whole numbers of bits."""

    exponent: Tensor

    def __init__(self, grouping: Grouping, bits: int, device: torch.device, exponent: int) -> None:
        super().__init__(grouping, bits, float(bits), device)
        self.decision.requires_grad_(False)
        self.register_buffer("exponent", torch.full((), exponent, dtype=torch.int32, device=device))

    def forward(self, weight: Tensor) -> Tensor:
        p, scale = self.grouping.expand(self.grid()).to(torch.int32), power_of_two(self.exponent)
        value = (quantize(weight.detach().to(torch.float32) / scale, p) * scale).to(weight.dtype)
        return straight_through(value, weight * (p > 0))

    def bits(self, s: Tensor) -> Tensor:
        return self.grouping.expand(s)

    def keep(self, s: Tensor) -> Tensor:
        return (self.grouping.expand(s) > 0).to(s.dtype)

    def survives(self, s: Tensor) -> Tensor:
        return self.keep(s)

    def limit(self, s: Tensor) -> Tensor:
        p = self.grouping.expand(s).to(torch.int32)
        return power_of_two(self.exponent) * (2.0 - power_of_two(1 - p))

    def scale_exponent(self) -> int | None:
        return int(self.exponent)
