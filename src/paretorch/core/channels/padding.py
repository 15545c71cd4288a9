"""Channels of a layer by so many at a time: runtimes take 16 or so at once, and odd widths may save nothing.

A layer that keeps 37 channels is filled up to 48 with some that were dropped. These count as kept, and stay zero: a batch norm that saw
nothing but zeros would blow up what came back, so that rounding would cost everything that was learned.
"""

import torch
from torch import Tensor


class Padding:
    """The decisions of a network by the layer whose width they are; `rows`: of each layer behind each decision."""

    def __init__(self, sets: list[Tensor], rows: Tensor) -> None:
        free = torch.ones(rows.shape[1], dtype=torch.bool)
        self.sets: list[Tensor] = []  # disjoint: each without what is in one before it
        for one in sets:
            own = one[free[one]]
            free[own] = False
            self.sets += [own] if len(own) else []
        self.member = torch.zeros(len(self.sets), rows.shape[1], dtype=torch.float32)
        for member, own in zip(self.member, self.sets, strict=True):
            member[own] = 1.0
        each = [int(rows[:, own].max()) for own in self.sets]  # rows of one decision: several in a grouped layer
        self._each = torch.tensor(each, dtype=torch.float32)

    def to(self, device: torch.device) -> None:
        self.member, self._each = self.member.to(device), self._each.to(device)

    def missing(self, kept: Tensor, multiple: int) -> Tensor:
        """How many decisions of each set must be added to what is kept, (…, decisions) of 0 and 1."""
        counts, sizes = kept @ self.member.T, self.member.sum(1)
        block = (multiple // self._each).clamp_min(1.0)
        full = torch.minimum((counts / block).ceil().clamp_min(1.0) * block, sizes)
        return full - counts

    def average(self, behind: Tensor) -> Tensor:
        """Of things that stand behind decisions, (things, decisions): how many stand behind one of each set, on average."""
        return self.member @ behind.T / self.member.sum(1, keepdim=True)

    def pad(self, keep: Tensor, score: Tensor, multiple: int) -> Tensor:
        """The kept decisions, and the best of the others until every set is full."""
        padded, score = keep.cpu().clone(), score.cpu()
        numbers = self.missing(padded.to(self.member), multiple).cpu()
        for own, number in zip(self.sets, numbers.tolist(), strict=True):
            closed = own[~padded[own]]
            padded[closed[torch.sort(score[closed], descending=True, stable=True).indices[: int(number)]]] = True
        return padded
