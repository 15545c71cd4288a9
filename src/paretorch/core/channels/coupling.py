"""Coupled channels: one decision for everything that carries a channel, what dropping it saves, and thresholds.

Rows of weights, their biases and the norms behind them are gated together, so a dropped channel is exactly zero; the
columns that read it need no gate. What is left of a weight is its kept rows times its kept columns. `threshold_for` finds the score
that leaves a given share of a network's channels, on the device, in a few rounds of many tries each.
"""

import bisect
import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paretorch.core.channels.labels import FIXED, Network
from paretorch.core.channels.shares import Shares
from paretorch.core.channels.times import LayerSides, LayerTimes, measure_times
from paretorch.core.groups import Grouping
from paretorch.core.relaxation import Relaxation
from paretorch.errors import DivergenceError
from paretorch.support.sharded import whole

TIE = 1e-6  # shares are summed in fp32: two that are as near to a target as that are equally near, and more is kept
_ONE = torch.zeros(1)  # the one column of a depthwise convolution


class Channels(Grouping):
    """The decisions of one tensor's rows, out of those of the whole network; a row without one (-1) is kept."""

    def __init__(self, shape: torch.Size, axis: int, index: Tensor, count: int) -> None:
        super().__init__()
        self.shape, self.grid, self.axis = tuple(shape), (count,), axis
        decided = index[index >= 0]
        self.sizes: Tensor
        self.index: Tensor
        each = shape.numel() // shape[axis]
        self.register_buffer("sizes", torch.bincount(decided, minlength=count).float() * each, persistent=False)
        self.register_buffer("index", torch.where(index >= 0, index, count), persistent=False)
        first = int(index[0])
        whole = torch.equal(index, torch.arange(first, first + len(index)))
        self._range = (first, len(index)) if whole and first >= 0 else None

    @property
    def run(self) -> int | None:
        return math.prod(self.shape[1:]) if self.axis == 0 else None

    def expand(self, decision: Tensor) -> Tensor:
        if self._range is not None:
            rows = decision.narrow(0, *self._range)
        else:
            rows = torch.cat([decision, decision.new_ones(1)])[self.index]
        return rows.view([-1 if axis == self.axis else 1 for axis in range(len(self.shape))])

    def rows(self, values: Tensor) -> Tensor:
        """The sum of each row."""
        others = [axis for axis in range(len(self.shape)) if axis != self.axis]
        return values.sum(others) if others else values

    def reduce(self, values: Tensor) -> Tensor:
        return values.new_zeros(self.grid[0] + 1).index_add(0, self.index, self.rows(values))[:-1]


def sum_rows(channels: Sequence[Grouping], values: Sequence[Tensor]) -> Tensor:
    """Add up values of several tensors by the decision of their rows: `reduce` of all of them, in few launches."""
    own = [one for one in channels if isinstance(one, Channels)]
    rows = torch.cat([one.rows(value) for one, value in zip(own, values, strict=True)])
    total = rows.new_zeros(own[0].grid[0] + 1)
    return total.index_add_(0, torch.cat([one.index for one in own]), rows)[:-1]


class Inputs(nn.Module):
    """Which columns of a weight read a channel that would stay if its mask were rounded now."""

    def __init__(self, columns: Channels, mask: Relaxation) -> None:
        super().__init__()
        self.columns = columns
        self._mask = (mask,)  # by reference: it is a part of another weight

    def forward(self) -> Tensor:
        (mask,) = self._mask
        threshold = mask.threshold()
        assert threshold is not None
        return self.columns.expand((whole(mask.decision) >= threshold).to(torch.float32))


@dataclass(frozen=True)
class Cut:
    """A side ("out" or "in") of a module, and the decision of each of its channels; -1: none, it stays."""

    module: str
    side: str
    index: Tensor


class Coupling:
    """The decisions of a network: which tensors each gates, what it cuts, and what is left of weights and MACs.

    Attributes:
        count: how many decisions there are.
        gates: the axis and the decision of each row of every tensor that is gated, by name; -1: none, it stays.
        reads: the same for the columns of every weight that reads channels which may go.
        cuts: the sides of modules that lose channels.
        sets: the decisions of every layer whose channels are all decided: one of them stays.
        parts: the decisions of every layer.
        weights: how many weights shares of "weights" are over, which biases and norms are not.
    """

    def __init__(self, net: Network, model: nn.Module, counted: set[str]) -> None:
        layers = list(net.layers.values())
        self._classes = _removable(net)
        self.count = len(self._classes)
        self._numbers = torch.full((net.size,), -1)
        self._numbers[self._classes] = torch.arange(self.count)
        rows = [self._index(net, layer.rows) for layer in layers]
        columns = [self._index(net, _ONE if layer.columns is None else layer.columns) for layer in layers]
        self.gates = {one.weight: (one.row_axis, index) for one, index in zip(layers, rows, strict=True)}
        self.gates |= {name: (0, self._index(net, net.vectors[name])) for name in net.vectors if name in net.gated}
        self.gates = {name: gate for name, gate in self.gates.items() if bool((gate[1] >= 0).any())}
        self.reads = {one.weight: (one.column_axis, index) for one, index in zip(layers, columns, strict=True)}
        self.reads = {name: read for name, read in self.reads.items() if bool((read[1] >= 0).any())}
        self.cuts = [cut for cut in self._cuts(net, model) if bool((cut.index >= 0).any())]
        # Each layer keeps a channel: of a layer whose channels are all decided, one decision must stay open.
        decisions = sorted({tuple(index.unique().tolist()) for index in rows})
        self.sets = [torch.tensor(one) for one in decisions if one and -1 not in one]
        decided = ([number for number in one if number >= 0] for one in decisions)
        self.parts = [torch.tensor(one) for one in decided if one]  # of the other layers, too
        entries = torch.tensor([layer.entries for layer in layers], dtype=torch.float32)
        units = {
            "weights": entries * torch.tensor([layer.weight in counted for layer in layers], dtype=torch.float32),
            "macs": entries * torch.tensor([layer.positions for layer in layers], dtype=torch.float32),
        }
        self._shares = Shares(rows, columns, units, self.sets, self.count)
        self._sides = [LayerSides(one.weight, *both) for one, *both in zip(layers, rows, columns, strict=True)]
        of_layer = torch.tensor([len(row) * len(column) for row, column in zip(rows, columns, strict=True)])
        self.weights = int((of_layer * units["weights"]).sum())

    def grouping(self, name: str, shape: torch.Size) -> Channels:
        """How the tensor of this name reads the decisions."""
        return Channels(shape, *self.gates[name], self.count)

    def inputs(self, name: str, shape: torch.Size, mask: Relaxation) -> Inputs | None:
        """How the weight of this name loses columns by the decisions that this mask reads; None: it loses none."""
        if name not in self.reads or mask.threshold() is None:
            return None
        return Inputs(Channels(shape, *self.reads[name], self.count), mask)

    def mask(self, name: str, keep: Tensor, dims: int) -> Tensor:
        """Which rows of the tensor of this name stay; it broadcasts against the tensor."""
        axis, index = self.gates[name]
        return _and_always(keep)[index].view([-1 if one == axis else 1 for one in range(dims)])

    def fix(self, net: Network, decisions: Tensor) -> None:
        """Give these decisions up: their channels stay."""
        net.fix(self._classes[decisions])

    def kept(self, keep: Tensor) -> list[tuple[str, str, Tensor]]:
        """Module, side and kept channels of everything that loses some."""
        padded = _and_always(keep.cpu())
        sides = [(cut.module, cut.side, padded[cut.index]) for cut in self.cuts]
        return [one for one in sides if not bool(one[2].all())]

    def share(self, kept: Tensor, unit: str, multiple: int = 1) -> Tensor:
        """The share of the weights ("weights") or multiply-adds ("macs") that is left; `kept` is (…, decisions), 0 or 1.

        Args:
            multiple: the layers are filled up to so many channels, or twice as many, and so on (see `pad`).
        """
        return self._shares.of(kept, unit, multiple)

    def shares_above(self, score: Tensor, thresholds: Tensor, unit: str, multiple: int) -> Tensor:
        """The shares of which `score >= threshold` is kept, for several thresholds that do not increase."""
        return self._shares.above(score, thresholds, unit, multiple)

    def to(self, device: torch.device) -> None:
        """Count on this device from now on."""
        self._shares.to(device)

    def measure(self, times_of: LayerTimes, multiple: int) -> None:
        """Have the layers measured, so that shares can be counted in "latency"."""
        self._shares.use_times(measure_times(self._sides, times_of, multiple))

    @property
    def times(self) -> Tensor | None:
        """What was measured: milliseconds by layer, number of rows and number of columns."""
        return None if self._shares.times is None else self._shares.times.values

    @times.setter
    def times(self, values: Tensor) -> None:
        assert self._shares.times is not None
        self._shares.times.to(values.device)
        self._shares.times.values = values
        self._shares.use_times(self._shares.times)

    @property
    def prices(self) -> Tensor | None:
        """The measured time that each channel saves, 1 on average; None if nothing was measured."""
        return self._shares.prices

    def least(self, unit: str, multiple: int) -> float:
        """The smallest share that leaves every layer a channel, or `multiple` of them."""
        return float(self.share(self.fewest(), unit, multiple))

    def fewest(self) -> Tensor:
        """One channel of every layer."""
        return self._first(self._ranked(torch.zeros(self.count, dtype=torch.float32)), len(self._shares.sets))

    def evenly(self) -> Tensor:
        """Scores by which every layer loses the same share of its channels."""
        score = torch.zeros(self.count, dtype=torch.float32)
        for own in self._shares.sets:
            score[own] = -torch.arange(len(own), dtype=torch.float32) / len(own)
        return score

    def keep_best(self, score: Tensor, share: float, unit: str, multiple: int) -> Tensor:
        """Keep the channels of the highest scores so that their share comes nearest to `share`; each layer keeps one.

        Scores are at 0 or above where a channel is open already. Those that `threshold_for` steered to this share stay as they are: a channel
        that came back would be blown up by the batch norm behind it, which saw nothing but zeros.
        """
        if not bool(torch.isfinite(score).all()):
            raise DivergenceError("a decision is no longer finite: lower the learning rate, or check the loss for NaN")
        ranked = self._ranked(score.detach().cpu())
        of_first = functools.cache(
            lambda count: float(self.share(self._first(ranked, count).to(score.device), unit, multiple))
        )
        counts = range(len(self._shares.sets), self.count + 1)
        above = bisect.bisect_right(counts, share, key=of_first)
        within, beyond = counts[max(above - 1, 0)], counts[min(above, len(counts) - 1)]
        nearest = of_first(beyond if of_first(beyond) - share <= share - of_first(within) + TIE else within)
        # Where layers are filled up, several counts are as near: then what is open already, which changes nothing.
        fewest = counts[bisect.bisect_left(counts, nearest, key=of_first)]
        most = counts[bisect.bisect_right(counts, nearest, key=of_first) - 1]
        open_now = int((score >= 0).sum())
        return self._first(ranked, max(fewest, min(open_now, most))).to(score.device)

    def pad(self, keep: Tensor, score: Tensor, multiple: int) -> Tensor:
        """What stays where every layer has a multiple of channels: the kept ones, and the best of the others."""
        return self._shares.pad(keep, score, multiple)

    def _ranked(self, score: Tensor) -> Tensor:
        """The decisions in the order in which they are kept: the best of each layer, then the best of all."""
        first = torch.tensor([int(own[score[own].argmax()]) for own in self._shares.sets], dtype=torch.long)
        rest = torch.ones(self.count, dtype=torch.bool)
        rest[first] = False
        others = rest.nonzero().flatten()
        return torch.cat([first, others[torch.sort(score[others], descending=True, stable=True).indices]])

    def _first(self, ranked: Tensor, count: int) -> Tensor:
        keep = torch.zeros(self.count, dtype=torch.bool)
        keep[ranked[:count]] = True
        return keep

    def _index(self, net: Network, labels: Tensor) -> Tensor:
        return self._numbers[net.classes(labels)]

    def _cuts(self, net: Network, model: nn.Module) -> Iterable[Cut]:
        for layer in net.layers.values():
            name = layer.weight.rpartition(".")[0]
            module = model.get_submodule(name)
            groups = getattr(module, "groups", 1)
            rows, columns = layer.rows, layer.columns
            if layer.row_axis == 1:  # transposed: the weight has the outputs of one group
                rows = rows.repeat(groups)
            elif columns is not None:
                columns = columns.repeat(groups)
            yield Cut(name, "out", self._index(net, rows))
            if columns is not None:
                yield Cut(name, "in", self._index(net, columns))
        for name, labels in net.passed.items():
            yield Cut(name, "out", self._index(net, labels))


def _removable(net: Network) -> Tensor:
    """Every class of labels that is made by some layer and not fixed, in the order of the layers."""
    rows = [layer.rows for layer in net.layers.values()]
    made = net.classes(torch.cat(rows)) if rows else torch.empty(0, dtype=torch.long)
    made = made[made != FIXED]
    classes, inverse = torch.unique(made, return_inverse=True)
    first = torch.full((len(classes),), len(made)).scatter_reduce(0, inverse, torch.arange(len(made)), "amin")
    in_order: Tensor = classes[first.argsort()]
    return in_order


def _and_always(keep: Tensor) -> Tensor:
    """With a last entry for what has no decision (-1) and stays."""
    return torch.cat([keep, keep.new_ones(1)])


_TRIES = 128


def threshold_for(coupling: Coupling, score: Tensor, share: Tensor, unit: str, multiple: int, now: Tensor) -> Tensor:
    """The value nearest to `now` such that the channels with scores at or above it come nearest to the share.

    Not closer to the scores at both its sides than a quarter of the way between them, so that no gate stands on its edge.
    """
    ends = score.new_full((1,), math.inf)
    # How many are open -> the least of them.
    ranked = torch.cat([ends, torch.sort(score, descending=True).values, -ends])

    def share_of(counts: Tensor) -> Tensor:
        return coupling.shares_above(score, ranked.gather(0, counts), unit, multiple)

    most = len(score)
    tries = torch.arange(_TRIES + 1, device=score.device)
    count, span = tries[:1] * 0, most
    while span > 0:  # the most that are within the share: between count and count + span
        stride = math.ceil(span / _TRIES)
        counts = (count + stride * tries).clamp_max(most)
        inside = (share_of(counts) <= share).sum(0, keepdim=True)
        count, span = counts.gather(0, (inside - 1).clamp_min(0)), (stride if stride > 1 else 0)
    pair = torch.cat([count, (count + 1).clamp_max(most)])
    off = (share_of(pair) - share).abs()
    best = torch.where(off[1] <= off[0] + TIE, pair[1:], pair[:1])  # in doubt, keep
    low, high = ranked.gather(0, best + 1).squeeze(0), ranked.gather(0, best).squeeze(0)
    gap = high - low
    margin = torch.where(gap.isfinite(), 0.25 * gap, 0.0)
    above = torch.nextafter(low, ends[0]) + margin
    return torch.minimum(torch.maximum(now, above), high - margin)
