"""Where the bytes of an artefact go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

KINDS = ("codes", "masks", "maps", "rest")


@dataclass(frozen=True)
class TensorSize:
    """One tensor in the file; bytes are fractional because one coder serves all tensors.

    codes: the values of kept weights, given their precision (all of a tensor that is not compressed). masks: which
    weights are zero. maps: which precision a kept weight has. rest: the frequencies and value tables.
    precisions: bits p -> number of weights; 0 is a dropped weight; empty if the tensor lies on no grid. scale: the
    exponent k of the grid's scale 2**k, read off the largest value unless the module's edits name it.
    """

    coding: str
    shape: tuple[int, ...]
    numel: int
    zeros: int
    dense: int
    codes: float
    masks: float
    maps: float
    rest: float
    precisions: Mapping[int, int]
    scale: int = 0

    @property
    def total(self) -> float:
        return self.codes + self.masks + self.maps + self.rest

    @property
    def bits(self) -> float:
        """Mean bits of a weight without map and masks: p on a grid, 0 where dropped, its dtype's width elsewhere."""
        if not self.numel:
            return 0.0
        if self.precisions:
            return sum(p * count for p, count in self.precisions.items()) / self.numel
        return 8.0 * self.dense / self.numel * (1.0 - self.zeros / self.numel)

    def rescaled(self, exponent: int) -> TensorSize:
        """The same weights seen at scale 2**exponent: every precision grows by as much as the scale does."""
        more = exponent - self.scale
        if not self.precisions or more <= 0:
            return self
        shifted = {p + more if p else 0: count for p, count in self.precisions.items()}
        return replace(self, precisions=shifted, scale=exponent)


@dataclass(frozen=True)
class Sizes:
    """Bytes on disk: `total` is the file's length; the kinds add up to it, the tensors to all but names and header."""

    total: int
    codes: float
    masks: float
    maps: float
    rest: float
    dense: int
    tensors: Mapping[str, TensorSize]
