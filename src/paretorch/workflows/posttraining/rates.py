"""What codes cost in the file: −log2 of their frequency, with frequencies per class of rows or columns.

The artefact codes integers by the frequency table of their row's or column's class, whichever axis saves more. Here slices
are sorted into classes by their mean magnitude, which is close to what the encoder finds and fast enough to be asked often.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LIMIT = 500  # the largest code: the encoder recognises steps of up to 512 distinct magnitudes
_CLASSES = 8
_UNSEEN = 0.05  # counts of a code that does not occur yet
_TABLE_BITS = 4.0  # of one entry of a table


@dataclass(frozen=True, eq=False)
class CodeLengths:
    """Bits per code: `table` is (classes, 2 LIMIT + 1), `of` the class of each slice along `axis`: 1 rows, 2 columns."""

    table: Tensor
    of: Tensor
    axis: int
    total: float

    def look_up(self, codes: Tensor, column: int) -> Tensor:
        """Return the bits of codes (candidates, groups, rows) in one column."""
        places = codes.long() + LIMIT
        if self.axis == 2:
            return self.table[self.of[column]][places]
        return self.table.flatten()[self.of.view(codes.shape[1:]) * self.table.shape[1] + places]

    def look_up_all(self, codes: Tensor) -> Tensor:
        """Return the bits of codes (candidates, groups, rows, columns)."""
        of = self.of.view(1, 1, 1, -1) if self.axis == 2 else self.of.view(1, *codes.shape[1:3], 1)
        return self.table.flatten()[of * self.table.shape[1] + codes.long() + LIMIT]


def fit_lengths(codes: Tensor) -> CodeLengths:
    """Return the code lengths of codes (groups, rows, columns), with classes along the axis that saves more."""
    groups, rows, columns = codes.shape
    places = codes.long() + LIMIT
    found = [_fit(places, torch.zeros(columns, dtype=torch.long, device=codes.device), 2)]
    for axis, count in ((1, groups * rows), (2, columns)):
        if count >= 2 * _CLASSES and codes.numel() // count >= 4:
            other = (2,) if axis == 1 else (0, 1)
            order = codes.abs().mean(other).flatten().argsort()
            of = torch.empty_like(order)
            of[order] = torch.arange(count, device=codes.device) * _CLASSES // count
            found.append(_fit(places, of, axis))
    return min(found, key=lambda lengths: lengths.total)


def _fit(places: Tensor, of: Tensor, axis: int) -> CodeLengths:
    groups, rows, columns = places.shape
    width, classes = 2 * LIMIT + 1, int(of.max()) + 1
    spread = of.view(1, 1, columns) if axis == 2 else of.view(groups, rows, 1)
    counts = torch.bincount((spread * width + places).flatten(), minlength=classes * width).view(classes, width)
    smooth = counts.float() + _UNSEEN
    table = -(smooth / smooth.sum(1, keepdim=True)).log2()
    sizes = counts.sum(1, keepdim=True).clamp_min(1)
    exact = (counts * -(counts.clamp_min(1) / sizes).log2()).sum()
    tables = _TABLE_BITS * int((counts > 0).sum()) + (len(of) * torch.log2(torch.tensor(float(classes))))
    return CodeLengths(table, of, axis, float(exact + tables))
