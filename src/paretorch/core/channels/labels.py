"""Labels of channels, and which of them are one: what following a network writes down."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

FIXED = 0  # the label of whatever cannot be removed


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
    """What was found: layers, the vectors that go with channels (biases, norms, slopes), and which labels are one."""

    layers: dict[str, Layer] = field(default_factory=dict)
    vectors: dict[str, Tensor] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)  # vectors that are parameters, and zero where a channel is
    passed: dict[str, Tensor] = field(default_factory=dict)  # norms and slopes, which lose the channels that pass them
    parents: list[int] = field(default_factory=lambda: [FIXED])

    def new(self, count: int) -> Tensor:
        first = len(self.parents)
        self.parents += range(first, first + count)
        return torch.arange(first, first + count, dtype=torch.float64)

    def find(self, label: int) -> int:
        while self.parents[label] != label:
            self.parents[label] = self.parents[self.parents[label]]
            label = self.parents[label]
        return label

    def join(self, one: Tensor, other: Tensor) -> None:
        other = other.expand_as(one)
        for axis in range(one.dim()):
            if one.stride(axis) == other.stride(axis) == 0:  # the same all along
                one, other = one.narrow(axis, 0, 1), other.narrow(axis, 0, 1)
        pairs = torch.stack([one.flatten(), other.flatten()], 1).unique(dim=0)
        for a, b in pairs.long().tolist():
            low, high = sorted((self.find(a), self.find(b)))
            self.parents[high] = low

    def fix(self, labels: Tensor) -> None:
        for label in labels.unique().long().tolist():
            self.parents[self.find(label)] = FIXED

    def classes(self, labels: Tensor) -> Tensor:
        """The representative of each label."""
        return torch.tensor([self.find(label) for label in labels.long().tolist()], dtype=torch.int64)
