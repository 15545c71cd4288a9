"""What the pruning rivals have in common: masks chosen by scores, exactly on target."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paretorch.core.method import Term
from paretorch.core.rounding import keep_best
from paretorch.errors import ConfigError
from paretorch.methods.sparsity.pruning import Pruning
from paretorch.support.checks import require_number
from paretorch.support.sharded import whole


@dataclass(frozen=True, kw_only=True)
class Rival(Pruning):
    """A method that CS is compared with."""

    def check(self) -> None:
        super().check()
        if self.group == "network":
            raise ConfigError(f'{type(self).__name__} decides within a layer: use group="weight", "channel" or a block')

    def need_target(self) -> float:
        """The target of a method that cannot do without one."""
        if self.target is None:
            raise ConfigError(f"{type(self).__name__} needs a target: give the share of weights to drop, such as 0.9")
        return self.target

    def check_training(self, lr: float, momentum: float, penalty: float = 0.0) -> None:
        """Of decisions by SGD, under a price."""
        require_number("lr", lr, 0.0, math.inf, "give a positive rate", above=True)
        require_number("momentum", momentum, 0.0, 1.0, "give 0 to 1")
        require_number("penalty", penalty, 0.0, math.inf, "a price is 0 or more")

    def refuse_precision(self, together: set[str]) -> None:
        """For methods that change the values of kept weights."""
        if "precision" in together:
            raise ConfigError(
                f"{type(self).__name__} rescales the weights it keeps, which takes them off a grid of precisions: "
                "use it alone, or a method that only masks, such as GradualMagnitude"
            )

    def schedule(self, term: Term, step: Tensor) -> None:
        """Most rivals have no schedule."""

    def measure(self, term: Term) -> dict[str, Tensor]:
        return {"sparsity": sparsity(term)}

    def choose(self, scores: Sequence[Tensor], sizes: Sequence[Tensor], factor: float) -> list[Tensor]:
        """Which groups to keep: the best, `factor` times as many as the target says; without one, scores above zero."""
        own = [score > 0 for score in scores]
        if self.target is None and factor == 1.0:
            return own
        total = float(sum(size.sum() for size in sizes))
        kept = float(sum((size * one).sum() for size, one in zip(sizes, own, strict=True)))
        goal = kept if self.target is None else (1.0 - self.target) * total
        return keep_best(scores, sizes, min(goal * factor, total))


def sparsity(term: Term) -> Tensor:
    """The share of weights that would be dropped if rounded now."""
    kept = []
    for relaxation in term.relaxations:
        one = relaxation.survives(relaxation.grid(whole(relaxation.decision)))
        assert one is not None
        kept.append(one.expand(relaxation.grouping.shape).sum())
    return 1.0 - torch.stack(kept).sum() / term.weights


def boundary(scores: Sequence[Tensor], keep: Sequence[Tensor]) -> Tensor:
    """Midway between the best dropped and the worst kept score; outside of all scores where there is but one kind."""
    flat = torch.cat([score.flatten() for score in scores])
    kept = torch.cat([one.flatten() for one in keep])
    if bool(kept.all()):
        return flat.min() - 1.0
    if not bool(kept.any()):
        return flat.max() + 1.0
    return (flat[~kept].max() + flat[kept].min()) / 2
