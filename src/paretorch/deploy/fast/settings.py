"""How a packed product is spread over a GPU: programs, warps, and how many tiles are requested ahead of use.

`SETTINGS` are those worth a measurement, chosen from a sweep on an H200 (results/fast-linear): the best of each case had eight warps per
multiprocessor, in programs of two or four; with sixteen it was slower, and starting early made almost no difference to the best.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from paretorch.deploy.fast.codes import WIDTHS
from paretorch.deploy.fast.packing import COLUMNS, ROWS, Packed

_IN_FLIGHT = 48 << 10
"""Bytes of weights that a multiprocessor should have requested: on an H200 it receives 32 KB in a microsecond, about the
latency of memory."""
_ASKED_FOR = 96 << 10
"""Bytes of weights that a multiprocessor requests before its turn (`early`): what memory delivers in the meantime."""
_MOST_STAGES = 6
_MOST_WARPS = 16  # of this kernel per multiprocessor: it has registers for no more


@dataclass(frozen=True)
class Tuning:
    """How a product is spread over a GPU.

    Args:
        programs: About how many per multiprocessor.
        warps: Of each program.
        stages: Of the pipeline: stages − 1 tiles per program are on their way. 0: as many as keep memory busy.
        splits: How many programs share a row tile. 0: as many as needed.
        early: Start while the kernel before this one still runs, on GPUs that can (Hopper and later).
    """

    programs: int = 4
    warps: int = 2
    stages: int = 0
    splits: int = 0
    early: bool = False


class Machine(NamedTuple):
    """A GPU: its multiprocessors, the bytes of shared memory of each, and whether kernels can start early."""

    processors: int
    shared: int
    early: bool


class Grid(NamedTuple):
    """splits: programs per row tile. ahead: turns whose tiles are requested before the kernel's turn; 0: it does not start early."""

    splits: int
    stages: int
    ahead: int


def launch_grid(packed: Packed, batch: int, tuning: Tuning, machine: Machine) -> Grid:
    """Return what the tuning leaves open, for a weight and a (rounded up) batch."""
    tiles, columns = len(packed.spans), packed.tile[1]
    turns = _up(_up(packed.shape[1], columns), tuning.warps)
    splits = tuning.splits or _splits(tiles, turns, machine.processors, tuning.programs)
    warps = max(tuning.warps, min(tuning.warps * _up(tiles * splits, machine.processors), _MOST_WARPS))
    present = {width: words[0].nbytes for width, words in zip(WIDTHS, packed.words, strict=True) if len(words)}
    sizes = list(present.values()) or [1]
    early = tuning.early and machine.early
    beside = columns * (max(present, default=1) if batch == 1 else 2 * batch)
    # A kernel that starts early shares the multiprocessor with the one that still runs.
    stages = tuning.stages or _stages(sizes, beside, warps, machine.shared // (1 + early))
    return Grid(splits, stages, max(1, min(_up(turns, splits), _ASKED_FOR // (warps * max(sizes)))) if early else 0)


def _splits(tiles: int, turns: int, processors: int, programs: int) -> int:
    """Return splits that give about `programs` programs per multiprocessor, with the most even load."""
    fewest = min(turns, max(1, round(programs * processors / tiles)))
    choices = range(fewest, min(turns, 2 * fewest) + 1)
    return min(choices, key=lambda splits: _up(tiles * splits, processors) * _up(turns, splits))


def _stages(sizes: list[int], beside: int, warps: int, shared: int) -> int:
    """One tile is computed with, stages − 2 are on their way; all of them, each with `beside` bytes of x, must fit."""
    wanted = 2 + _up(_IN_FLIGHT, warps * sum(sizes) // len(sizes))
    room = 1 + shared // (warps * (max(sizes) + beside))
    return max(2, min(wanted, room, _MOST_STAGES))


def _up(number: int, step: int) -> int:
    return -(-number // step)


_SMALL = 32 << 20
"""Bytes of codes below which reading a layer takes about as long as starting and ending the kernel."""


@dataclass(frozen=True)
class Setting:
    """A tuning, and the tile (rows, columns), which is fixed when a weight is packed."""

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
    Setting(Tuning(1, 8)),  # no row tile is shared if there are enough of them: no partial sums, no tickets
)
"""Few, because each is compiled for every kind of layer."""


def default_tuning(packed: Packed) -> Tuning:
    """Return the tuning of a layer that was not measured."""
    return _MANY if packed.bytes < _SMALL else _FEW
