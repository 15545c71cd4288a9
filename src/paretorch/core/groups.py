"""Which weights share one decision.

`"weight"`: each its own; `"channel"`: one per output channel; `"layer"`: one per tensor; `"network"`: one for all;
a tuple: blocks of that shape over the leading dimensions, whole over the rest; a callable `(name, weight) -> labels`:
an integer tensor of the weight's shape, equal labels share.
"""

import copy
import math
from collections.abc import Callable
from typing import Self, TypeVar

import torch
from torch import Tensor, nn

from paretorch.errors import ConfigError

Group = str | tuple[int, ...] | Callable[[str, Tensor], Tensor]
NAMES = ("weight", "channel", "layer", "network")


class Grouping(nn.Module):
    """The grid of decisions of one weight: `expand` maps grid → weight, `reduce` sums weight → grid."""

    shape: tuple[int, ...]
    grid: tuple[int, ...]
    sizes: Tensor | float
    is_single = False
    """Whether each weight has its own decision."""

    @property
    def run(self) -> int | None:
        """How many neighbours in a contiguous weight share each decision, one after the other; None: they are no neighbours."""
        return None

    def of_rows(self, part: slice) -> Self | None:
        """The groups of some rows of the weight; None: groups may have weights of several rows."""
        return None

    def expand(self, decision: Tensor) -> Tensor:
        """A tensor that broadcasts against the weight."""
        return decision

    def reduce(self, values: Tensor) -> Tensor:
        """Sum the weight-shaped values within each group."""
        return values.sum_to_size(self.grid)


class Broadcast(Grouping):
    """Groups that are whole slices: the grid has the weight's rank, with ones where it is constant."""

    def __init__(self, shape: torch.Size, grid: tuple[int, ...]) -> None:
        super().__init__()
        self.shape, self.grid = tuple(shape), grid
        self.sizes = float(shape.numel() // math.prod(grid))
        self.is_single = self.grid == self.shape

    @property
    def run(self) -> int | None:
        return _run(self.shape, self.shape, self.grid)

    def of_rows(self, part: slice) -> Self | None:
        return _of_rows(self, part) if self.shape and self.grid[0] == self.shape[0] else None


class Blocks(Grouping):
    """Equal blocks over the leading dimensions; those at the far edges may be smaller."""

    def __init__(self, shape: torch.Size, block: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = tuple(shape)
        self.block = block + tuple(shape[len(block) :])
        self.grid = tuple(math.ceil(n / b) for n, b in zip(self.shape, self.block, strict=True))
        self.sizes: Tensor
        self.register_buffer("sizes", self.reduce(torch.ones(shape, dtype=torch.float32)), persistent=False)

    @property
    def run(self) -> int | None:
        return _run(self.shape, self.block, self.grid)

    def of_rows(self, part: slice) -> Self | None:
        if self.block[0] != 1:
            return None
        found = _of_rows(self, part)
        found.__dict__["_buffers"] = {"sizes": self.sizes[part]}
        return found

    def expand(self, decision: Tensor) -> Tensor:
        for axis, (n, b) in enumerate(zip(self.shape, self.block, strict=True)):
            decision = decision.repeat_interleave(b, axis).narrow(axis, 0, n)
        return decision

    def reduce(self, values: Tensor) -> Tensor:
        padding: list[int] = []
        for n, b, g in zip(reversed(self.shape), reversed(self.block), reversed(self.grid), strict=True):
            padding += [0, g * b - n]
        split = [size for g, b in zip(self.grid, self.block, strict=True) for size in (g, b)]
        inner = tuple(range(1, 2 * len(self.grid), 2))
        return nn.functional.pad(values, padding).reshape(split).sum(inner)


class Labels(Grouping):
    """Any partition of the weight, given as one integer label a weight."""

    def __init__(self, labels: Tensor) -> None:
        super().__init__()
        self.shape = tuple(labels.shape)
        values, inverse = torch.unique(labels, return_inverse=True)
        self.grid = (len(values),)
        self.labels: Tensor
        self.sizes: Tensor
        self.register_buffer("labels", inverse, persistent=False)
        self.register_buffer("sizes", torch.bincount(inverse.flatten()).to(torch.float32), persistent=False)

    def expand(self, decision: Tensor) -> Tensor:
        return decision[self.labels]

    def reduce(self, values: Tensor) -> Tensor:
        flat = values.flatten()
        return values.new_zeros(self.grid).index_add(0, self.labels.flatten(), flat)


G = TypeVar("G", bound=Grouping)


def _of_rows(grouping: G, part: slice) -> G:
    found = copy.copy(grouping)
    found.shape = (part.stop - part.start, *grouping.shape[1:])
    found.grid = (part.stop - part.start, *grouping.grid[1:])
    return found


def grouping(group: Group, name: str, weight: Tensor, channel_axis: int) -> Grouping:
    """The grid for one weight; refuses what cannot be meant."""
    shape = weight.shape
    if group == "weight":
        return Broadcast(shape, tuple(shape))
    if group == "channel":
        return Broadcast(shape, tuple(n if axis == channel_axis else 1 for axis, n in enumerate(shape)))
    if group in ("layer", "network"):
        return Broadcast(shape, (1,) * len(shape))
    if isinstance(group, tuple):
        return _blocks(group, name, shape)
    if callable(group):
        return _labels(group(name, weight.detach()), name, shape)
    raise ConfigError(
        f"group={group!r} is not known: use one of {', '.join(NAMES)}, a block shape such as (4, 4), or a callable"
    )


def _run(shape: tuple[int, ...], block: tuple[int, ...], grid: tuple[int, ...]) -> int | None:
    """The weights of a group that are neighbours: leading dimensions have a decision each, the last ones one in all."""
    lead = next((axis for axis, (n, g) in enumerate(zip(shape, grid, strict=True)) if n != g), len(shape))
    if lead == len(shape):
        return 1
    inner = math.prod(shape[lead + 1 :])
    if math.prod(grid[lead + 1 :]) != 1 or shape[lead] % grid[lead]:
        return None
    each = shape[lead] // grid[lead]
    return each * inner if grid[lead] == 1 or each == block[lead] else None


def _blocks(block: tuple[int, ...], name: str, shape: torch.Size) -> Blocks:
    if not block or any(not isinstance(b, int) or b < 1 for b in block):
        raise ConfigError(f"group={block!r}: a block shape needs positive whole numbers, such as (4, 4)")
    if len(block) > len(shape) or any(b > n for b, n in zip(block, shape, strict=False)):
        raise ConfigError(
            f"group={block!r}: a block must fit into {name} of shape {tuple(shape)}; make it smaller or exclude {name}"
        )
    return Blocks(shape, block)


def _labels(labels: Tensor, name: str, shape: torch.Size) -> Labels:
    if not isinstance(labels, Tensor) or labels.shape != shape or labels.is_floating_point():
        raise ConfigError(f"group: the callable must return an integer tensor of shape {tuple(shape)} for {name}")
    return Labels(labels)
