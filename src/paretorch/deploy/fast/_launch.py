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


@dataclass(frozen=True)
class Tuning:
    """programs: about how many per multiprocessor, each of so many warps, with stages − 1 tiles for each on their way.

    splits: how many programs share a row tile; 0: as many as it takes. early: start while the kernel in front still runs,
    on GPUs that can (Hopper and later).
    """

    programs: int = 4
    warps: int = 4
    stages: int = 3
    splits: int = 0
    early: bool = False


def runs_on(device: torch.device) -> bool:
    """Whether the kernel runs there: an NVIDIA GPU with bf16 tensor cores, and triton."""
    return device.type == "cuda" and _capable(device)


@cache
def _capable(device: torch.device) -> bool:
    nvidia = torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)
    return nvidia and find_spec("triton") is not None


def packed_product(
    x: Tensor, packed: Packed, order: Order, bias: Tensor | None, tickets: Tensor, tuning: Tuning
) -> Tensor:
    """x (at most 16 rows, contiguous bf16) times the transposed weight, plus a bias of any dtype, by one launch.

    order: packed.order, which takes long to find out. tickets: as many int32 zeros as row tiles; they are zeros again afterwards, and not to be shared by launches that may
    run at the same time.
    """
    from paretorch.deploy.fast._kernel import packed_linear

    (outputs, inputs), (height, columns) = packed.shape, packed.tile
    batch, tiles = len(x), len(packed.spans)
    early = tuning.early and x.is_cuda and torch.cuda.get_device_capability(x.device) >= (9, 0)
    splits = tuning.splits or _splits(tiles, -(-inputs // columns), _processors(x.device), tuning)
    has = {width: len(words) > 0 for width, words in zip(WIDTHS, packed.words, strict=True)}
    out = torch.empty(batch, outputs, dtype=x.dtype, device=x.device)
    partial = torch.empty(tiles * splits * batch * height if splits > 1 else 1, device=x.device)
    with torch.cuda.device(x.device) if x.is_cuda else nullcontext():
        packed_linear[(splits, tiles)](
            x,
            out,
            out if bias is None else bias,
            packed.rows,
            packed.exponents,
            *packed.words,
            *packed.places,
            packed.spans,
            partial,
            tickets,
            batch,
            outputs,
            inputs,
            x.stride(0),
            tiles,
            **{f"HAS{width}": has[width] for width in WIDTHS},
            ODD=packed.odd,
            FULL=order is Order.FULL,
            REGULAR=order is not Order.FREE,
            WHOLE=inputs % columns == 0,
            BIAS=bias is not None,
            ROWS=height,
            COLUMNS=columns,
            BATCH=8 if batch <= 8 else LARGEST_BATCH,
            WAYS=tuning.warps,
            SPLITS=splits,
            STAGES=tuning.stages + (order is Order.FREE),  # looking up the place of a tile is a stage of its own
            EARLY=early,
            **{f"ASM{width}": _assembly(width, packed.odd) if x.is_cuda and has[width] else None for width in WIDTHS},
            num_warps=tuning.warps,
            **({"launch_pdl": True} if early else {}),
        )
    return out


def _splits(tiles: int, blocks: int, processors: int, tuning: Tuning) -> int:
    """About `programs` programs for each multiprocessor, and of the choices near that the one with the evenest load."""
    turns = -(-blocks // tuning.warps)
    fewest = min(turns, max(1, round(tuning.programs * processors / tiles)))
    choices = range(fewest, min(turns, 2 * fewest) + 1)
    return min(choices, key=lambda splits: -(-tiles * splits // processors) * -(-turns // splits))


@cache
def _assembly(width: int, odd: bool) -> str:
    return "\n".join(instructions(width, index, odd) for index in range(WORD // width))


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
