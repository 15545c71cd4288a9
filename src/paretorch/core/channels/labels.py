"""Labels in place of numbers: what stands for tensors while a network is traced, and which labels are one.

A label is the number of a channel. An activation is traced as the label of each of its elements (`Value`), a
parameter or buffer as its name (`Named`). `Network` holds what tracing finds.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

FIXED = 0  # the label of whatever cannot be removed


@dataclass(frozen=True)
class Value:
    """An activation: the label of each of its elements."""

    labels: Tensor
    zero: bool  # whether the elements of a removed channel are exactly zero


@dataclass(frozen=True)
class Named:
    """A parameter or buffer, by name."""

    name: str
    shape: torch.Size


@dataclass(frozen=True)
class Layer:
    """A weight that makes and reads channels: the labels of its rows (outputs) and columns (inputs)."""

    weight: str
    row_axis: int
    rows: Tensor
    columns: Tensor | None  # None: of a depthwise convolution, whose one column stays
    entries: int  # numbers behind one pair of row and column
    positions: int  # how often one example uses each weight

    @property
    def column_axis(self) -> int:
        return 1 - self.row_axis


@dataclass
class Network:
    """What was found: layers, the vectors that go with channels (biases, norms, slopes), and which labels are one.

    Labels that are one form a tree, whose root is the smallest of them. So whatever is one with FIXED is fixed.
    """

    layers: dict[str, Layer] = field(default_factory=dict)
    vectors: dict[str, Tensor] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)  # vectors that are parameters, and zero where a channel is
    passed: dict[str, Tensor] = field(default_factory=dict)  # norms and slopes, which lose the channels that pass them
    _parents: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    _used: int = 1  # the array grows by doubling, so that many small layers cost no more than a few large ones

    @property
    def size(self) -> int:
        """How many labels there are."""
        return self._used

    def new(self, count: int) -> Tensor:
        """Labels that nothing has yet."""
        first, self._used = self._used, self._used + count
        if self._used > len(self._parents):
            more = np.arange(len(self._parents), 2 * self._used)
            self._parents = np.concatenate([self._parents, more])
        return torch.arange(first, self._used, dtype=torch.float64)

    def join(self, one: Tensor, other: Tensor) -> None:
        """Make labels one, element by element."""
        firsts, seconds = _condensed(one, other.expand_as(one))
        a, b = np.divmod(np.unique(firsts * self._used + seconds), self._used)
        while len(a):
            a, b = self._roots(a), self._roots(b)
            a, b = a[a != b], b[a != b]
            # Several may meet at one root: the smallest gets it, and the next round joins the others.
            np.minimum.at(self._parents, np.maximum(a, b), np.minimum(a, b))

    def fix(self, labels: Tensor) -> None:
        """Make labels FIXED: their channels are never removed."""
        (found,) = _condensed(labels)
        self._parents[self._roots(np.unique(found))] = FIXED

    def classes(self, labels: Tensor) -> Tensor:
        """The smallest of the labels that are one with each label."""
        return torch.from_numpy(self._roots(labels.long().numpy()))

    def _roots(self, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        roots = self._parents[labels]
        while not np.array_equal(above := self._parents[roots], roots):
            roots = above
        self._parents[labels] = roots  # the way is short the next time
        return roots


def unlabelled(shape: Iterable[int]) -> Value:
    """An activation without a channel that may go."""
    return Value(torch.zeros((), dtype=torch.float64).expand(tuple(shape)), False)


def along(labels: Tensor, axis: int, shape: torch.Size) -> Tensor:
    """Labels of one axis, at every element of this shape."""
    return labels.view([-1 if d == axis else 1 for d in range(len(shape))]).expand(shape)


def is_constant(labels: Tensor, axis: int) -> bool:
    """Whether labels do not change along an axis."""
    if labels.shape[axis] <= 1 or labels.stride(axis) == 0:  # expanded: there is one copy in memory
        return labels.shape[axis] > 0
    return bool((labels == labels.narrow(axis, 0, 1)).all())


def _condensed(*several: Tensor) -> list[NDArray[np.int64]]:
    """Labels without the axes along which none of them changes: one position of an image stands for all."""
    for axis in range(several[0].dim()):
        if all(is_constant(labels, axis) for labels in several):
            several = tuple(labels.narrow(axis, 0, 1) for labels in several)
    return [labels.flatten().long().numpy() for labels in several]


def is_wide(labels: Tensor, full: Tensor) -> bool:
    """Whether an operand has an element of its own wherever the result's labels differ; a scalar has not."""
    shape = (1,) * (full.dim() - labels.dim()) + tuple(labels.shape)
    narrow = [d for d in range(full.dim()) if shape[d] == 1 and full.shape[d] > 1]
    return all(is_constant(full, d) for d in narrow) and labels.numel() > 1


def leaves(tree: Any) -> list[Any]:
    """What is in nested lists and dicts."""
    if isinstance(tree, dict):
        tree = list(tree.values())
    return [leaf for one in tree for leaf in leaves(one)] if isinstance(tree, list | tuple) else [tree]


def mapped(tree: Any, function: Callable[[Any], Any], kind: Any = (Value, Named)) -> Any:
    """The same nested lists and dicts, with a function of every leaf of a kind."""
    if isinstance(tree, dict):
        return {key: mapped(value, function, kind) for key, value in tree.items()}
    if isinstance(tree, list | tuple) and not isinstance(tree, torch.Size):
        return [mapped(one, function, kind) for one in tree]
    return function(tree) if isinstance(tree, kind) else tree
