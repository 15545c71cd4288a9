"""Starts the kernel of `kernel.py` on devices that can run it."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from paretorch.deploy.fast.codes import WIDTHS, WORD, instructions
from paretorch.deploy.fast.packing import Order, Packed
from paretorch.deploy.fast.settings import Machine, Tuning, launch_grid

LARGEST_BATCH = 16


def runs_on(device: torch.device) -> bool:
    """Return whether the kernel runs there: an NVIDIA GPU with bf16 tensor cores, and triton is installed."""
    return device.type == "cuda" and _capable(device)


@cache
def _capable(device: torch.device) -> bool:
    nvidia = torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)
    return nvidia and find_spec("triton") is not None


class Launch:
    """x (at most 16 rows, `batch` of them, contiguous bf16) times the transposed weight plus a bias of any dtype, in one launch.

    What does not depend on the values of x is computed once: computing it for every call would take longer than the
    product. Not to be used by two streams at the same time: the tickets are shared.

    Args:
        order: `packed.order`, computed by the caller once.
    """

    def __init__(self, packed: Packed, order: Order, bias: Tensor | None, batch: int, tuning: Tuning) -> None:
        from paretorch.deploy.fast.kernel import packed_linear

        device = packed.rows.device
        (outputs, inputs), (height, columns) = packed.shape, packed.tile
        padded = next(size for size in (1, 8, LARGEST_BATCH) if batch <= size)
        splits, stages, ahead = launch_grid(packed, padded, tuning, _machine(device))
        tiles = len(packed.spans)
        has = {width: len(words) > 0 for width, words in zip(WIDTHS, packed.words, strict=True)}
        assembly = {
            width: _assembly(width, packed.odd) if device.type == "cuda" and has[width] else None for width in has
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
            **{f"ASM{width}": assembly[width] for width in WIDTHS},
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
            "STAGES": stages + (order is Order.FREE),  # looking up the place of a tile is a stage of its own
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
def _assembly(width: int, odd: bool) -> str:
    return "\n".join(instructions(width, index, odd) for index in range(WORD // width))


@cache
def _machine(device: torch.device) -> Machine:
    if device.type != "cuda":
        return Machine(1, 1 << 17, False)
    properties = torch.cuda.get_device_properties(device)
    shared = properties.shared_memory_per_multiprocessor - (24 << 10)  # sums and the system need the rest
    return Machine(properties.multi_processor_count, shared, properties.major >= 9)
