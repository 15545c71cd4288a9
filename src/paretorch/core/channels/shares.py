"""What is left of weights and multiply-adds if some channels are kept, and how layers are padded to whole multiples.

Runtimes take 16 channels or so at once, and odd widths may save nothing. So a layer that keeps 37 channels can be filled
up to 48 with some that were dropped. These count as kept, and stay zero: a batch norm that saw nothing but zeros would
blow up what came back, so that rounding would cost everything that was learned.

Everything here is linear in the rows and columns of the layers. A table of layers by decisions would not be.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from paretorch.core.channels.times import Times

LATENCY = "latency"
"""The unit of measured times, if there are any."""
_LEAST_PRICE = 0.05  # of the average: channels that save nothing are not kept whatever they do


class Members:
    """Some things (layers, say), and the decision behind each of their members (rows, say); -1: none, it stays."""

    def __init__(self, indices: list[Tensor], decisions: int) -> None:
        lengths = torch.tensor([len(index) for index in indices], dtype=torch.long)
        thing = torch.repeat_interleave(torch.arange(len(indices)), lengths)
        decision = torch.cat([*indices, torch.empty(0, dtype=torch.long)])
        self.things, self.decisions = len(indices), decisions
        self.always = torch.bincount(thing[decision < 0], minlength=self.things).float()
        self.thing, self.decision = thing[decision >= 0], decision[decision >= 0]

    def to(self, device: torch.device) -> None:
        self.always, self.thing, self.decision = (one.to(device) for one in (self.always, self.thing, self.decision))

    def kept(self, kept: Tensor) -> Tensor:
        """How many members of each thing are left: (choices, decisions) of 0 and 1 -> (choices, things)."""
        choice = torch.arange(len(kept), device=kept.device)[:, None]
        # Whole numbers: exact in every order of summing, also where a GPU has none.
        sums = kept.new_zeros(len(kept) * self.things)
        sums = sums.index_add(0, (choice * self.things + self.thing).flatten(), kept[:, self.decision].flatten())
        return sums.view(len(kept), self.things) + self.always

    def kept_from(self, first: Tensor, choices: int) -> Tensor:
        """The same for choices that keep more and more; `first`: the first choice that keeps each decision."""
        levels = choices + 1  # the last: never
        sums = torch.zeros(self.things * levels, dtype=torch.int32, device=first.device)
        ones = torch.ones(1, dtype=torch.int32, device=first.device).expand_as(self.thing)
        sums = sums.index_add(0, self.thing * levels + first[self.decision], ones)
        counts = sums.view(self.things, levels).cumsum(1)[:, :-1]
        return counts.T.to(torch.float32) + self.always

    def most(self) -> Tensor:
        """The most members of one thing behind each decision."""
        pairs, counts = torch.unique(self.thing * self.decisions + self.decision, return_counts=True)
        return torch.zeros(self.decisions, dtype=torch.long).scatter_reduce(0, pairs % self.decisions, counts, "amax")


class Shares:
    """What is left of the layers of a network.

    Args:
        rows: the decision behind each row of each layer.
        columns: the same for columns.
        units: what a pair of a row and a column of each layer counts, by name of the unit.
        sets: the decisions of each layer whose channels are all decided.
        decisions: how many there are.
    """

    def __init__(
        self, rows: list[Tensor], columns: list[Tensor], units: dict[str, Tensor], sets: list[Tensor], decisions: int
    ) -> None:
        self._rows, self._columns = Members(rows, decisions), Members(columns, decisions)
        whole = torch.tensor([len(row) * len(column) for row, column in zip(rows, columns, strict=True)]).float()
        self._units = {unit: each / torch.dot(whole, each) for unit, each in units.items()}
        free = torch.ones(decisions, dtype=torch.bool)
        self.sets: list[Tensor] = []  # disjoint: each without what is in one before it
        for one in sets:
            own = one[free[one]]
            free[own] = False
            self.sets += [own] if len(own) else []
        self._in_sets = Members(self.sets, decisions)
        self._sizes = torch.tensor([len(own) for own in self.sets], dtype=torch.float32)
        most = self._rows.most()  # several rows of a grouped layer stand behind one decision
        self._rows_each = torch.tensor([int(most[own].max()) for own in self.sets], dtype=torch.float32)
        self._average_rows, self._average_columns = (self._average(one) for one in (self._rows, self._columns))
        self.times: Times | None = None
        self.prices: Tensor | None = None

    def to(self, device: torch.device) -> None:
        """Count on this device from now on."""
        if self._sizes.device != device:
            for members in (self._rows, self._columns, self._in_sets):
                members.to(device)
            self._sizes, self._rows_each = self._sizes.to(device), self._rows_each.to(device)
            self._average_rows, self._average_columns = self._average_rows.to(device), self._average_columns.to(device)
            self._units = {unit: each.to(device) for unit, each in self._units.items()}
            if self.times is not None and self.prices is not None:
                self.times.to(device)
                self.prices = self.prices.to(device)

    def use_times(self, times: Times) -> None:
        """Count "latency" by these times, and have the price of each decision: the time that it saves, 1 on average."""
        self.to(times.values.device)
        total = torch.zeros(self._rows.decisions, device=self._sizes.device)
        for members, each in zip((self._rows, self._columns), times.saved(), strict=True):
            total = total.index_add(0, members.decision, each[members.thing])
        self.times, self.prices = times, (total / total.mean().clamp_min(1e-12)).clamp_min(_LEAST_PRICE)

    def of(self, kept: Tensor, unit: str, multiple: int) -> Tensor:
        """The share that is left if some decisions are kept, (…, decisions) of 0 and 1."""
        self.to(kept.device)
        flat = kept.float().reshape(-1, kept.shape[-1])
        return self._share(lambda members: members.kept(flat), unit, multiple).view(kept.shape[:-1])

    def above(self, score: Tensor, thresholds: Tensor, unit: str, multiple: int) -> Tensor:
        """The share that is left if scores at or above a threshold are kept, of each of several that do not increase."""
        self.to(score.device)
        first = torch.searchsorted(-thresholds, -score)  # how many thresholds are above a score
        return self._share(lambda members: members.kept_from(first, len(thresholds)), unit, multiple)

    def _share(self, count: Callable[[Members], Tensor], unit: str, multiple: int) -> Tensor:
        rows, columns = count(self._rows), count(self._columns)
        if multiple > 1:
            missing = self._missing(count(self._in_sets), multiple)
            rows, columns = rows + missing @ self._average_rows, columns + missing @ self._average_columns
        if unit == LATENCY:
            assert self.times is not None
            return self.times.each(rows, columns).sum(-1) / self.times.whole()
        return (rows * columns * self._units[unit]).sum(-1)  # no product of matrices: TF32 would round the shares

    def _missing(self, counts: Tensor, multiple: int) -> Tensor:
        """How many decisions of each set must be added to those that are kept."""
        block = (multiple // self._rows_each).clamp_min(1.0)
        full = torch.minimum((counts / block).ceil().clamp_min(1.0) * block, self._sizes)
        return full - counts

    def _average(self, members: Members) -> Tensor:
        """How many members of each layer stand behind one decision of each set, on average: (sets, layers)."""
        set_of = torch.full((members.decisions,), -1)
        set_of[self._in_sets.decision] = self._in_sets.thing
        its_set = set_of[members.decision]
        pairs = (its_set * members.things + members.thing)[its_set >= 0]
        sums = torch.bincount(pairs, minlength=len(self.sets) * members.things).float()
        return sums.view(len(self.sets), members.things) / self._sizes[:, None]

    def pad(self, keep: Tensor, score: Tensor, multiple: int) -> Tensor:
        """The kept decisions, and the best of the others until every layer has a multiple of channels."""
        padded, score = keep.cpu().clone(), score.cpu()
        counts = self._in_sets.kept(padded.to(self._sizes)[None])
        numbers = self._missing(counts, multiple)[0].tolist()
        for own, number in zip(self.sets, numbers, strict=True):
            closed = own[~padded[own]]
            padded[closed[torch.sort(score[closed], descending=True, stable=True).indices[: int(number)]]] = True
        return padded
