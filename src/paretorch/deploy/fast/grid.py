"""How a packed product is spread over a GPU: programs, warps, and how far ahead tiles are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from paretorch.deploy.fast.codes import WIDTHS
from paretorch.deploy.fast.packing import Packed

_IN_FLIGHT = 48 << 10
"""Bytes of weights that a multiprocessor should be waiting for: an H200 brings it 32 KB in a microsecond, about as long as
memory takes to answer."""
_ASKED_FOR = 96 << 10
"""Bytes of weights that a multiprocessor asks for before its turn (`early`): what memory brings in the meantime."""
_MOST_STAGES = 6
_MOST_WARPS = 16  # of this kernel on one multiprocessor: its registers last for no more


@dataclass(frozen=True)
class Tuning:
    """programs: about how many per multiprocessor, each of so many warps, with stages − 1 tiles for each on their way.

    stages 0: as many as keep memory busy. splits: how many programs share a row tile; 0: as many as it takes. early: start
    while the kernel in front still runs, on GPUs that can (Hopper and later).
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
    """splits: programs to a row tile. ahead: turns whose tiles are asked for before the kernel's turn; 0: it starts late."""

    splits: int
    stages: int
    ahead: int


def lay_out(packed: Packed, batch: int, tuning: Tuning, machine: Machine) -> Grid:
    """What the tuning leaves open, for a weight and a (rounded up) batch."""
    tiles, columns = len(packed.spans), packed.tile[1]
    turns = _up(_up(packed.shape[1], columns), tuning.warps)
    splits = tuning.splits or _splits(tiles, turns, machine.processors, tuning.programs)
    warps = max(tuning.warps, min(tuning.warps * _up(tiles * splits, machine.processors), _MOST_WARPS))
    present = {width: words[0].nbytes for width, words in zip(WIDTHS, packed.words, strict=True) if len(words)}
    sizes = list(present.values()) or [1]
    early = tuning.early and machine.early
    beside = columns * (max(present, default=1) if batch == 1 else 2 * batch)
    # A kernel that starts early needs its place beside the one that still runs.
    stages = tuning.stages or _stages(sizes, beside, warps, machine.shared // (1 + early))
    return Grid(splits, stages, max(1, min(_up(turns, splits), _ASKED_FOR // (warps * max(sizes)))) if early else 0)


def _splits(tiles: int, turns: int, processors: int, programs: int) -> int:
    """About `programs` programs for each multiprocessor, and of the choices near that the one with the evenest load."""
    fewest = min(turns, max(1, round(programs * processors / tiles)))
    choices = range(fewest, min(turns, 2 * fewest) + 1)
    return min(choices, key=lambda splits: _up(tiles * splits, processors) * _up(turns, splits))


def _stages(sizes: list[int], beside: int, warps: int, shared: int) -> int:
    """A tile is computed with, stages − 2 are waited for; all of them, with so many bytes of x beside each, must fit."""
    wanted = 2 + _up(_IN_FLIGHT, warps * sum(sizes) // len(sizes))
    room = 1 + shared // (warps * (max(sizes) + beside))
    return max(2, min(wanted, room, _MOST_STAGES))


def _up(number: int, step: int) -> int:
    return -(-number // step)
