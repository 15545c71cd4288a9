"""Arithmetic on large tensors: block by block, and in the widest dtype.

What is computed on the way is as small as a block, whatever the size of the tensor. The widest dtype is float64, but for Apple's GPUs
(`mps`), which have float32 and no wider one.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

ON_CPU = 2**20
"""Numbers of a block on a CPU, whose caches hold about as many."""
ON_GPU = 2**24
"""Numbers of a block on a GPU, where each operation takes a launch."""


def block_size(device: torch.device) -> int:
    """Return how many numbers are computed together at most."""
    return ON_CPU if device.type == "cpu" else ON_GPU


def row_blocks(shape: tuple[int, ...], most: int) -> list[slice]:
    """Return the rows of a tensor of this shape in runs of at most `most` numbers, and of at least one row."""
    if not shape or shape[0] < 2:
        return [slice(0, shape[0])] if shape else []
    total = 1
    for size in shape:
        total *= size
    rows = max(1, most * shape[0] // max(total, 1))
    return [slice(start, min(start + rows, shape[0])) for start in range(0, shape[0], rows)]


def blocks(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the numbers of a tensor in order, as flat blocks: views if it is contiguous."""
    flat = tensor.detach().reshape(-1)
    yield from flat.split(block_size(tensor.device)) if len(flat) else ()


def all_finite(tensor: Tensor) -> bool:
    """Return whether no number is infinite or NaN."""
    return all(bool(block.isfinite().all()) for block in blocks(tensor))


def has_float64(device: torch.device) -> bool:
    """Whether the device has numbers of 64 bits."""
    return device.type != "mps"


def widest_float(device: torch.device) -> torch.dtype:
    """The widest floating-point dtype of the device, for sums that stay there."""
    return torch.float64 if has_float64(device) else torch.float32


def widened(tensor: Tensor) -> Tensor:
    """The tensor in the widest dtype of its device, where it stays: for elementwise work and for sums."""
    return tensor.to(widest_float(tensor.device))


def exact(tensor: Tensor) -> Tensor:
    """The tensor in float64, on the CPU if its device has no such numbers: for what float32 would get wrong."""
    return tensor.double() if has_float64(tensor.device) else tensor.to("cpu", torch.float64)
