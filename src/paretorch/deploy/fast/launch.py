"""Starts the kernel of `kernel.py`, spread over the GPU by a `Tuning`: programs, warps, tiles that are requested ahead of use.

`SETTINGS` are those worth measuring, from a sweep on an H200 (results/fast-linear). The best setting of each case had eight
warps per multiprocessor, in programs of two or four. With sixteen it was slower. Starting early changed the best hardly at all.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor

from paretorch.deploy.fast.codes import WIDTHS, WORD, instructions
from paretorch.deploy.fast.packing import COLUMNS, ROWS, Order, Packed

LARGEST_BATCH = 16
_IN_FLIGHT = 48 << 10
"""Bytes of weights that a multiprocessor should have requested: an H200's receives 32 KB per microsecond, about the latency of
memory."""
_REQUESTED = 96 << 10
"""Bytes of weights that a multiprocessor requests before the kernel's turn (`early`): what memory delivers until then."""
_MAX_STAGES = 6
_MAX_WARPS = 16  # of this kernel per multiprocessor, because of its registers


@dataclass(frozen=True)
class Tuning:
    """How a product is spread over a GPU.

    Args:
        programs: Programs per multiprocessor, about.
        warps: Warps per program.
        stages: Pipeline stages: stages − 1 tiles per program are being loaded. 0: as many as keep memory busy.
        splits: Programs per row tile. 0: as many as needed.
        early: Start while the previous kernel still runs, on GPUs that can (Hopper and later).
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
    """How a kernel is launched.

    Args:
        splits: Programs per row tile.
        stages: Pipeline stages.
        ahead: Turns whose tiles are requested before the kernel's turn; 0: it does not start early.
    """

    splits: int
    stages: int
    ahead: int


def launch_grid(packed: Packed, batch: int, tuning: Tuning, machine: Machine) -> Grid:
    """Return the launch of a weight and a (rounded up) batch, with the values that the tuning leaves open."""
    tiles, columns = len(packed.spans), packed.tile[1]
    turns = _up(_up(packed.shape[1], columns), tuning.warps)
    splits = tuning.splits or choose_splits(tiles, turns, machine.processors, tuning.programs)
    warps = max(tuning.warps, min(tuning.warps * _up(tiles * splits, machine.processors), _MAX_WARPS))
    present = {width: words[0].nbytes for width, words in zip(WIDTHS, packed.words, strict=True) if len(words)}
    sizes = list(present.values()) or [1]
    early = tuning.early and machine.early
    input_bytes = columns * (max(present, default=1) if batch == 1 else 2 * batch)
    # A kernel that starts early shares the multiprocessor with the previous one.
    stages = tuning.stages or choose_stages(sizes, input_bytes, warps, machine.shared // (1 + early))
    return Grid(splits, stages, max(1, min(_up(turns, splits), _REQUESTED // (warps * max(sizes)))) if early else 0)


def choose_splits(tiles: int, turns: int, processors: int, programs: int) -> int:
    """Return splits that give about `programs` programs per multiprocessor, with the most even load."""
    fewest = min(turns, max(1, round(programs * processors / tiles)))
    choices = range(fewest, min(turns, 2 * fewest) + 1)
    return min(choices, key=lambda splits: _up(tiles * splits, processors) * _up(turns, splits))


def choose_stages(sizes: list[int], input_bytes: int, warps: int, shared: int) -> int:
    """Return stages that keep memory busy: stages − 1 tiles, each with its bytes of the input, must fit into shared memory."""
    wanted = 2 + _up(_IN_FLIGHT, warps * sum(sizes) // len(sizes))
    fitting = 1 + shared // (warps * (max(sizes) + input_bytes))
    return max(2, min(wanted, fitting, _MAX_STAGES))


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
    Setting(Tuning(1, 8)),  # with enough row tiles none is shared: no partial sums, no tickets
)
"""Only a few, because each is compiled for every kind of layer."""


def default_tuning(packed: Packed) -> Tuning:
    """Return the tuning of a layer that was not measured."""
    return _MANY if packed.bytes < _SMALL else _FEW


def runs_on(device: torch.device) -> bool:
    """Return whether the kernel runs on a device: an NVIDIA GPU with bf16 tensor cores, with triton installed."""
    return device.type == "cuda" and _capable(device)


@cache
def _capable(device: torch.device) -> bool:
    nvidia = torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)
    return nvidia and find_spec("triton") is not None


class Launch:
    """Computes x Wᵀ + b in one launch, for x of `batch` rows (at most 16) in contiguous bf16 and a bias of any dtype.

    Everything that does not depend on the values of x is computed once: per call it would take longer than the product. Two
    streams must not use it at the same time, because they would share tickets.

    Args:
        order: `packed.order`, which the caller computes once.
    """

    def __init__(self, packed: Packed, order: Order, bias: Tensor | None, batch: int, tuning: Tuning) -> None:
        from paretorch.deploy.fast.kernel import packed_linear

        device = packed.rows.device
        (outputs, inputs), (height, columns) = packed.shape, packed.tile
        padded = next(size for size in (1, 8, LARGEST_BATCH) if batch <= size)
        splits, stages, ahead = launch_grid(packed, padded, tuning, _machine(device))
        tiles = len(packed.spans)
        has = {width: len(words) > 0 for width, words in zip(WIDTHS, packed.words, strict=True)}
        sources = {
            width: assembly(width, packed.odd) if device.type == "cuda" and has[width] else None for width in has
        }
        self._kernel = packed_linear[(splits, tiles)]
        self._bias = bias
        self._tensors = (packed.rows, packed.exponents, *packed.words, *packed.places, packed.spans)
        self._tickets = torch.zeros(tiles, dtype=torch.int32, device=device)
        self._numbers = (batch, outputs, inputs, inputs, tiles)
        self._shape = (batch, outputs)
        self._partial = tiles * splits * batch * height if splits > 1 else 1
        self._constants = {
            **{f"HAS{width}": has[width] for width in WIDTHS},
            **{f"ASM{width}": sources[width] for width in WIDTHS},
            "ODD": packed.odd,
            "FULL": order is Order.FULL,
            "REGULAR": order is not Order.FREE,
            "WHOLE": inputs % columns == 0,
            "BIAS": bias is not None,
            "ROWS": height,
            "COLUMNS": columns,
            "BATCH": padded,
            "WARPS": tuning.warps,
            "SPLITS": splits,
            "STAGES": stages + (order is Order.FREE),  # looking up the place of a tile is one more stage
            "EARLY": ahead,
            "num_warps": tuning.warps,
            **({"launch_pdl": True} if ahead else {}),
        }

    def __call__(self, x: Tensor) -> Tensor:
        out = torch.empty(self._shape, dtype=x.dtype, device=x.device)
        partial = torch.empty(self._partial, device=x.device)
        bias = out if self._bias is None else self._bias
        elsewhere = x.is_cuda and x.device.index != torch.cuda.current_device()
        with torch.cuda.device(x.device) if elsewhere else nullcontext():
            self._kernel(x, out, bias, *self._tensors, partial, self._tickets, *self._numbers, **self._constants)
        return out


@cache
def assembly(width: int, odd: bool) -> str:
    """Return the instructions for all codes of a word, one line per code."""
    return "\n".join(instructions(width, index, odd) for index in range(WORD // width))


@cache
def _machine(device: torch.device) -> Machine:
    if device.type != "cuda":
        return Machine(1, 1 << 17, False)
    properties = torch.cuda.get_device_properties(device)
    shared = properties.shared_memory_per_multiprocessor - (24 << 10)  # the sums and the system need the rest
    return Machine(properties.multi_processor_count, shared, properties.major >= 9)
