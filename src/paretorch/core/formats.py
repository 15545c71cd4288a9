"""How inference runtimes store a weight: the codes, the groups that share a step, and the number format of the steps.

    W = Δ c,   c a whole number from `low` to `high`,   Δ a number of `scale`'s format, one per group

A weight that is trained with `format=` has these values already, so that an export stores it without rounding it again.

    format             codes        group                      step
    int8               −127 … 127   an output channel          fp32     a signed byte per weight
    int4               −8 … 7       an output channel          fp32     two weights per byte
    int8xB, int4xB     as above     B inputs of one output     fp32     MatMulNBits and DequantizeLinear with blocks
    int2xB             −2 … 1       B inputs of one output     fp32     MatMulNBits
    int4xBbf16         −8 … 7       B inputs of one output     bf16     XNNPACK's and torchao's groups
    Q8_0               −127 … 127   32 inputs                  fp16     GGUF
    Q4_0               −8 … 7       32 inputs                  fp16, of either sign
    TQ2_0              −1, 0, 1     256 inputs                 fp16
    fp16               what a runtime keeps of a weight that it has no codes for: W = half(w)

The product of a step in fp16 or bf16 and a code has at most 19 binary digits, so that it is exact in fp32; one of a step in fp32 is
rounded once, as runtimes round it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from paretorch.core.attach.sites import Site, is_conv1d
from paretorch.core.groups import Group, Grouping
from paretorch.errors import ConfigError

_LEAST = {torch.float32: 1e-30, torch.bfloat16: 1e-30, torch.float16: 2.0**-14}  # of a step: below, fp16 loses digits
_TRIED = 24  # steps per group that the start is chosen from
_SHORTEST = 0.4  # of the step that reaches the largest magnitude


@dataclass(frozen=True)
class WeightFormat:
    """A format of weights.

    Args:
        bits: Of a code, as stored.
        low, high: The least and the largest code.
        block: How many inputs share a step; 0: all of an output channel.
        scale: The number format of the steps.
        signed: Whether steps may be negative, so that the largest magnitude of a group can always have the code `low`.
    """

    name: str
    bits: int
    low: int
    high: int
    block: int = 0
    scale: torch.dtype = torch.float32
    signed: bool = False

    @property
    def is_half(self) -> bool:
        """Whether weights are numbers in fp16, without codes and steps."""
        return self.low == self.high

    def bytes_of(self, count: int, shape: torch.Size | tuple[int, ...], channel_axis: int = 0) -> int:
        """Return the bytes of so many weights with their steps."""
        groups = 0 if self.is_half else count // self.block if self.block else shape[channel_axis]
        return (count * self.bits + 7) // 8 + groups * self.scale_bits // 8

    @property
    def scale_bits(self) -> int:
        """Bits of one step."""
        return torch.finfo(self.scale).bits

    def holds(self, site: Site) -> bool:
        """Whether a weight has whole groups."""
        if self.block == 0:
            return site.weight.dim() > 1
        return site.weight.dim() == 2 and site.weight.shape[self._inputs(site)] % self.block == 0

    def group(self, site: Site) -> Group:
        """The groups of a weight, as `compress` takes them."""
        if self.is_half:
            return "layer"
        if self.block == 0:
            return "channel"
        return (self.block, 1) if self._inputs(site) == 0 else (1, self.block)

    @staticmethod
    def _inputs(site: Site) -> int:
        """The dimension of the inputs: the first of a Conv1D of transformers, else the second."""
        return 0 if is_conv1d(site.owners[0][0]) else 1

    def cast(self, steps: Tensor) -> Tensor:
        """Round steps to the numbers that the format has, away from 0."""
        least, top = _LEAST[self.scale], torch.finfo(self.scale).max
        sizes = steps.abs().clamp(least, top).to(self.scale).to(torch.float32)
        return sizes.copysign(steps)

    def codes(self, weight: Tensor, steps: Tensor) -> Tensor:
        """Return the nearest codes, as floats; steps broadcast with the weight."""
        return torch.round(weight.to(torch.float32) / steps).clamp_(self.low, self.high)

    def values(self, weight: Tensor, steps: Tensor) -> Tensor:
        """Return the nearest values that the format has."""
        if self.is_half:
            top = torch.finfo(torch.float16).max
            return weight.to(torch.float32).clamp(-top, top).to(torch.float16).to(torch.float32)
        return self.codes(weight, steps).mul_(steps)

    def reaches(self, weight: Tensor, steps: Tensor) -> Tensor:
        """Return which weights are within the range of the codes."""
        if self.is_half:
            return torch.ones_like(weight, dtype=torch.bool)
        scaled = weight.to(torch.float32) / steps
        return (scaled > self.low - 0.5) & (scaled < self.high + 0.5)

    @torch.no_grad()
    def fit(self, weight: Tensor, grouping: Grouping) -> Tensor:
        """Return the step of each group with the least squared error, among some that clip the largest magnitudes more or less.

        Those that clip nothing are among them, and those of llama.cpp's own rounding.
        """
        wide = weight.detach().to(torch.float32)
        if self.is_half:
            return torch.ones(grouping.grid, dtype=torch.float32, device=wide.device)
        best = torch.full(grouping.grid, torch.inf, dtype=torch.float32, device=wide.device)
        found = torch.full_like(best, _LEAST[self.scale])
        for steps in self._candidates(wide, grouping):
            steps = self.cast(steps)
            spread = grouping.expand(steps)
            error = grouping.reduce((self.codes(wide, spread) * spread - wide).square_())
            better = error < best
            best, found = torch.where(better, error, best), torch.where(better, steps, found)
        return found

    def _candidates(self, weight: Tensor, grouping: Grouping) -> Iterator[Tensor]:
        top, bottom = _largest(weight, grouping), _largest(-weight, grouping)
        sizes = torch.maximum(top, bottom)
        mean = grouping.reduce(weight.abs()) / grouping.sizes
        for i in range(_TRIED):
            factor = 1.0 - (1.0 - _SHORTEST) * i / (_TRIED - 1)
            yield sizes / self.high * factor
            if -self.low > self.high:
                # The code `low` reaches one further than `high`: for the largest magnitude, of whichever sign if steps are signed.
                own = torch.where(top > bottom, -top, bottom) if self.signed else torch.maximum(bottom, top * 0.9)
                yield own / -self.low * factor
        if self.high == 1:  # of three values, the outer ones suit the mean of those that are not dropped
            for factor in (0.8, 1.0, 1.25, 1.5, 1.75):
                yield mean * factor


def _largest(values: Tensor, grouping: Grouping) -> Tensor:
    """The largest value of each group, at least 0."""
    places = torch.arange(torch.Size(grouping.grid).numel(), device=values.device)
    index = grouping.expand(places.view(grouping.grid)).expand(values.shape).flatten()
    found = torch.zeros(places.numel(), dtype=torch.float32, device=values.device)
    return found.scatter_reduce_(0, index, values.flatten(), "amax").view(grouping.grid)


def _blocks(bits: int, low: int, high: int) -> list[WeightFormat]:
    return [WeightFormat(f"int{bits}x{block}", bits, low, high, block) for block in BLOCKS]


BLOCKS = (128, 64, 32, 16)
"""Inputs that may share a step in MatMulNBits."""

FORMATS = {
    one.name: one
    for one in (
        WeightFormat("int8", 8, -127, 127),
        WeightFormat("int4", 4, -8, 7),
        *_blocks(8, -127, 127),
        *_blocks(4, -8, 7),
        *_blocks(2, -2, 1),
        *(WeightFormat(f"int4x{block}bf16", 4, -8, 7, block, torch.bfloat16) for block in BLOCKS if block >= 32),
        WeightFormat("Q8_0", 8, -127, 127, 32, torch.float16),
        WeightFormat("Q4_0", 4, -8, 7, 32, torch.float16, signed=True),
        WeightFormat("TQ2_0", 2, -1, 1, 256, torch.float16),
        WeightFormat("fp16", 16, 0, 0),
    )
}
"""All formats by name."""


def find_format(name: str) -> WeightFormat:
    """Return a format by its name; raises for an unknown one."""
    if name not in FORMATS:
        raise ConfigError(f"format={name!r} is not known: use one of {', '.join(FORMATS)}")
    return FORMATS[name]


def check_format(name: str | None) -> None:
    """Raise unless this is a name of a format, or None."""
    if name is not None:
        find_format(name)


def group_for(name: str, site: Site) -> Group:
    """Return the groups that a format has in a weight; raises for a weight that it cannot hold, or that is not in fp32."""
    found = find_format(name)
    if site.weight.dtype != torch.float32:
        raise ConfigError(
            f"{site.name} is {site.weight.dtype}, and format={name!r} needs float32: compress model.float()"
        )
    if not found.holds(site):
        raise ConfigError(
            f"format={name!r} cannot hold {site.name} of shape {tuple(site.weight.shape)}: it needs a matrix with a multiple of "
            f"{found.block} inputs; exclude it"
        )
    return found.group(site)
