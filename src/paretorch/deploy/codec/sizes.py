"""Where the bytes of an artefact go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from paretorch.edits import Edit, Scale, Share
from paretorch.edits.scale import MAX_BITS

KINDS = ("codes", "masks", "maps", "rest")


class _ByKind:
    @property
    def by_kind(self) -> dict[str, float]:
        """The bytes of each kind."""
        return {kind: getattr(self, kind) for kind in KINDS}


@dataclass(frozen=True)
class TensorSize(_ByKind):
    """One tensor in the file; bytes are fractional because one coder serves all tensors.

    Args:
        codes: Bytes of the values of kept weights, given their precision (all bytes of a tensor that is not compressed).
        masks: Bytes that say which weights are zero.
        maps: Bytes that say which precision a kept weight has.
        rest: Bytes of frequencies and value tables.
        precisions: {bits p: number of weights}. On the grid of chapter 5, which has no zero, p is that of the grid, and 0
            for a zero; of n other values (LSQ, DoReFa …), ⌈log₂ n⌉; empty if the values are many.
        scale: The exponent k of the grid's scale 2**k; None if there is no such grid.
        steps: Of the bytes for codes, those for steps and offsets of groups.
        off: Of the bytes for codes, those for values that are not on the grid of their group, or not exactly.
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
    scale: int | None = None
    steps: float = 0.0
    off: float = 0.0

    @property
    def total(self) -> float:
        return self.codes + self.masks + self.maps + self.rest

    @property
    def bits(self) -> float:
        """Mean bits per weight without map and masks: p as above, or without precisions the bits of the dtype, and 0 for a zero."""
        if not self.numel:
            return 0.0
        if self.precisions:
            return sum(p * count for p, count in self.precisions.items()) / self.numel
        return 8.0 * self.dense / self.numel * (1.0 - self.zeros / self.numel)

    def rescaled(self, exponent: int) -> TensorSize:
        """Return the same weights on a grid of scale 2**exponent: every precision grows by as much as the scale."""
        more = 0 if self.scale is None else exponent - self.scale
        if more <= 0:
            return self
        shifted = {p + more if p else 0: count for p, count in self.precisions.items()}
        return replace(self, precisions=shifted, scale=exponent)


@dataclass(frozen=True, repr=False)
class Sizes(_ByKind):
    """Bytes on disk. `total` is the length of the file. The kinds add up to it; the tensors to all but names and header."""

    total: int
    codes: float
    masks: float
    maps: float
    rest: float
    dense: int
    tensors: Mapping[str, TensorSize]

    def __repr__(self) -> str:
        kinds = ", ".join(f"{kind} {size:,.0f}" for kind, size in self.by_kind.items())
        return f"Sizes({self.total:,} bytes: {kinds}; {self.dense:,} dense, {len(self.tensors)} tensors)"


def on_their_grids(tensors: Mapping[str, TensorSize], edits: Sequence[Edit]) -> dict[str, TensorSize]:
    """Return sizes with precisions as the methods count them: on the grid with the scale that an edit names, or of chapter 5.

    Read off the values alone, a grid is as small as the largest value allows: ±½ of 2 bits would count as 1 bit. Shared tensors
    have no edit for their grid and do not change. Neither does a grid finer than that of any method.
    """
    named = {edit.weight: edit.exponent for edit in edits if isinstance(edit, Scale)}
    shared = {name for edit in edits if isinstance(edit, Share) for name in edit.stored}
    found = {}
    for name, size in tensors.items():
        known = name in named or (len(size.shape) > 1 and name not in shared)
        seen = size.rescaled(named.get(name, 0)) if known else size
        found[name] = seen if name in named or max(seen.precisions, default=0) <= MAX_BITS else size
    return found
