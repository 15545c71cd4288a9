"""Starts the kernel of `_kernel`: where it can run, and with how many programs, warps and stages."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from paretorch.deploy.fast.codes import WIDTHS, WORD, instructions
from paretorch.deploy.fast.packing import Order, Packed

LARGEST_BATCH = 16


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


def runs_on(device: torch.device) -> bool:
    """Whether the kernel runs there: an NVIDIA GPU with bf16 tensor cores, and triton."""
    return device.type == "cuda" and _capable(device)


@cache
def _capable(device: torch.device) -> bool:
    nvidia = torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)
    return nvidia and find_spec("triton") is not None


class Launch:
    """x (`batch` rows of at most 16, contiguous bf16) times the transposed weight plus a bias of any dtype, by one launch.

    What does not depend on the numbers in x is made once: deciding it anew each time would take longer than the product.
    order: packed.order. Not to be used by two streams at the same time: the tickets are shared.
    """

    def __init__(self, packed: Packed, order: Order, bias: Tensor | None, batch: int, tuning: Tuning) -> None:
        from paretorch.deploy.fast._kernel import packed_linear

        device = packed.rows.device
        (outputs, inputs), (height, columns) = packed.shape, packed.tile
        tiles, turns = len(packed.spans), _up(_up(inputs, columns), tuning.warps)
        processors = _processors(device)
        splits = tuning.splits or _splits(tiles, turns, processors, tuning.programs)
        padded = 1 if batch == 1 else 8 if batch <= 8 else LARGEST_BATCH
        sizes = [words[0].nbytes for words in packed.words if len(words)] or [1]
        warps = max(tuning.warps, min(tuning.warps * _up(tiles * splits, processors), _MOST_WARPS))
        beside = columns * (max(WIDTHS) if padded == 1 else 2 * padded)
        stages = tuning.stages or _stages(sizes, beside, warps, _shared_memory(device))
        early = tuning.early and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
        has = {width: len(words) > 0 for width, words in zip(WIDTHS, packed.words, strict=True)}
        spoken = {
            width: _assembly(width, packed.odd) if device.type == "cuda" and has[width] else None for width in has
        }
        self._kernel = packed_linear[(splits, tiles)]
        self._bias = bias
        self._held = (packed.rows, packed.exponents, *packed.words, *packed.places, packed.spans)
        self._tickets = torch.zeros(tiles, dtype=torch.int32, device=device)
        self._numbers = (batch, outputs, inputs, inputs, tiles)
        self._shape = (batch, outputs)
        self._partial = tiles * splits * batch * height if splits > 1 else 1
        self._constants = {
            **{f"HAS{width}": has[width] for width in WIDTHS},
            **{f"ASM{width}": spoken[width] for width in WIDTHS},
            "ODD": packed.odd,
            "FULL": order is Order.FULL,
            "REGULAR": order is not Order.FREE,
            "WHOLE": inputs % columns == 0,
            "BIAS": bias is not None,
            "ROWS": height,
            "COLUMNS": columns,
            "BATCH": padded,
            "WAYS": tuning.warps,
            "SPLITS": splits,
            "STAGES": stages + (order is Order.FREE),  # to look up the place of a tile is a stage of its own
            "EARLY": max(1, min(_up(turns, splits), _ASKED_FOR // (warps * max(sizes)))) if early else 0,
            "num_warps": tuning.warps,
            **({"launch_pdl": True} if early else {}),
        }

    def __call__(self, x: Tensor) -> Tensor:
        out = torch.empty(self._shape, dtype=x.dtype, device=x.device)
        partial = torch.empty(self._partial, device=x.device)
        bias = out if self._bias is None else self._bias
        elsewhere = x.is_cuda and x.device.index != torch.cuda.current_device()
        with torch.cuda.device(x.device) if elsewhere else nullcontext():
            self._kernel(x, out, bias, *self._held, partial, self._tickets, *self._numbers, **self._constants)
        return out


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


@cache
def _assembly(width: int, odd: bool) -> str:
    return "\n".join(instructions(width, index, odd) for index in range(WORD // width))


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@cache
def _shared_memory(device: torch.device) -> int:
    """Bytes of a multiprocessor, without what sums and the system need."""
    whole = (
        torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor if device.type == "cuda" else 1 << 17
    )
    return whole - (24 << 10)
