"""Measured times of layers by how many of their rows and columns are kept: a coarse grid for each layer, with straight lines between.

A layer with fewer channels is never counted as slower: each time is at most that of the next larger layer, which also takes out the largest noise of
the measurements. So the time of a network never falls when channels are added, and thresholds can be found by bisection.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

LayerTimes = Callable[[str, Sequence[int], Sequence[int]], Sequence[Sequence[float]]]
"""Maps a weight and some numbers of its rows and columns to the milliseconds of its layer for each pair of them."""

_PARTS = (0.25, 0.5, 1.0)  # of its rows and columns at which a layer is measured, beside the fewest that it may keep


class LayerSides(NamedTuple):
    """A weight, and the decision behind each of its rows and columns; -1: none, it stays."""

    weight: str
    rows: Tensor
    columns: Tensor


class Times:
    """The milliseconds of all layers.

    Args:
        rows, columns: (layers, knots), numbers of rows and columns that were measured, ascending.
        values: (layers, knots, knots), the milliseconds.
    """

    def __init__(self, rows: Tensor, columns: Tensor, values: Tensor) -> None:
        self._rows, self._columns = rows, columns
        # From the largest down, along both sides.
        for axis in (1, 2):
            values = values.flip(axis).cummin(axis).values.flip(axis)
        self.values = values.contiguous()
        self._totals = rows[:, -1], columns[:, -1]

    def to(self, device: torch.device) -> None:
        """Count on this device from now on."""
        if self.values.device != device:
            self._rows, self._columns = self._rows.to(device), self._columns.to(device)
            self.values = self.values.to(device)
            self._totals = self._rows[:, -1], self._columns[:, -1]

    def whole(self) -> Tensor:
        """The milliseconds of all layers with all their channels."""
        return self.values[:, -1, -1].sum()

    def each(self, rows: Tensor, columns: Tensor) -> Tensor:
        """The milliseconds of each layer with so many rows and columns, (choices, layers)."""
        row, row_part = _place(self._rows, rows)
        column, column_part = _place(self._columns, columns)
        layer = torch.arange(len(self.values), device=rows.device)
        low, high = (
            self.values[layer, row, one] * (1 - row_part) + self.values[layer, row + 1, one] * row_part
            for one in (column, column + 1)
        )
        return low * (1 - column_part) + high * column_part

    def saved(self) -> tuple[Tensor, Tensor]:
        """The milliseconds that one row, and one column, less saves in each layer, on the way to half of them."""
        rows, columns = (total[None] for total in self._totals)
        whole = self.each(rows, columns)
        by_row = (whole - self.each(rows / 2, columns)) / (rows / 2)
        by_column = (whole - self.each(rows, columns / 2)) / (columns / 2)
        return by_row[0], by_column[0]


def measure_times(sides: Sequence[LayerSides], times_of: LayerTimes, multiple: int) -> Times:
    """Have every layer measured that can lose channels; the others take no time here.

    Args:
        multiple: Layers keep a multiple of so many channels.
    """
    found, rows, columns = [], [], []
    for weight, row, column in sides:
        knots = _knots(row, multiple), _knots(column, multiple)
        changes = bool((row >= 0).any() or (column >= 0).any())
        times = times_of(weight, *knots) if changes else [[0.0] * len(knots[1]) for _ in knots[0]]
        found.append(torch.tensor(times, dtype=torch.float32))
        rows.append(torch.tensor(knots[0], dtype=torch.float32))
        columns.append(torch.tensor(knots[1], dtype=torch.float32))
    return Times(torch.stack(rows), torch.stack(columns), torch.stack(found))


def _knots(decisions: Tensor, multiple: int) -> list[int]:
    """Numbers of channels to measure at; the first again and again if there are few."""
    total, fixed = len(decisions), int((decisions < 0).sum())
    steps = (min(total, math.ceil(total * part / multiple) * multiple) for part in _PARTS)
    some = {max(fixed, one) for one in steps} | {max(fixed, min(multiple, total))} if fixed < total else {total}
    ascending = sorted(some)
    return [ascending[0]] * (len(_PARTS) + 1 - len(ascending)) + ascending


def _place(knots: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """The knot at or below each count, and how far the count is on the way to the next one; (choices, layers)."""
    last = knots.shape[1] - 1
    place = torch.searchsorted(knots, counts.T.contiguous(), right=True).T.sub(1).clamp(0, last - 1)
    layer = torch.arange(len(knots), device=knots.device)
    low, high = knots[layer, place], knots[layer, place + 1]
    return place, ((counts - low) / (high - low).clamp_min(1.0)).clamp(0.0, 1.0)
