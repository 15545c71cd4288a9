"""Where the bytes of an artefact go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

KINDS = ("codes", "masks", "maps", "rest")


@dataclass(frozen=True)
class TensorSize:
    """One tensor in the file; bytes are fractional because one coder serves all tensors.

    codes: the values of kept weights, given their precision (all of a tensor that is not compressed). masks: which
    weights are zero. maps: which precision a kept weight has. rest: the frequencies and value tables.
    precisions: bits p -> number of weights; 0 is a dropped weight; empty if the tensor lies on no grid.
    """

    coding: str
    numel: int
    zeros: int
    dense: int
    codes: float
    masks: float
    maps: float
    rest: float
    precisions: Mapping[int, int]

    @property
    def total(self) -> float:
        return self.codes + self.masks + self.maps + self.rest


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
