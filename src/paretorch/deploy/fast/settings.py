"""The ways to cut and run a packed product that are worth a measurement, and the one to take without.

Chosen from a sweep on an H200 (results/fast-linear): the best of each case had eight warps on a multiprocessor, in programs of two or
four; with sixteen it was slower, and starting early made next to no difference to the best.
"""

from __future__ import annotations

from dataclasses import dataclass

from paretorch.deploy.fast.grid import Tuning
from paretorch.deploy.fast.packing import COLUMNS, ROWS, Packed

_SMALL = 32 << 20
"""Bytes of codes below which a layer is read in about the time that starting and ending takes."""


@dataclass(frozen=True)
class Setting:
    """tile: ROWS × COLUMNS, fixed when a weight is packed."""

    tuning: Tuning
    tile: tuple[int, int] = (ROWS, COLUMNS)

    def __str__(self) -> str:
        tuning = self.tuning
        asked = {"stages": tuning.stages, "splits": tuning.splits}
        words = [f"{tuning.programs} × {tuning.warps} warps", *(f"{n} {name}" for name, n in asked.items() if n)]
        return ", ".join([f"tiles {self.tile[0]}x{self.tile[1]}", *words, *["early"] * tuning.early])


_MANY, _FEW = Tuning(4, 2), Tuning(2, 4)
SETTINGS = (
    Setting(_MANY),
    Setting(_FEW),
    Setting(Tuning(4, 2, stages=3)),
    Setting(_MANY, (64, 256)),
    Setting(_FEW, (32, 512)),
    Setting(Tuning(1, 8)),  # no row tile is shared where there are enough of them: no partial sums, no tickets
)
"""Few, since every one is compiled for every kind of layer."""


def unmeasured(packed: Packed) -> Tuning:
    """For a layer that nobody measured."""
    return _MANY if packed.bytes < _SMALL else _FEW
