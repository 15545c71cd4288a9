"""What folding costs: the network folded one layer further at a time, measured each time."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from paretorch.core.attach.sites import Selector
from paretorch.deploy import sizes
from paretorch.methods.sharing.folding import fold, levels


@dataclass(frozen=True)
class Folded:
    """A network folded to so many of the layers that share.

    threshold: the similarity of the last two that became one (1: none did). error: the largest, of a weight. bytes: of
    the file. measured: what `measure` said of it.
    """

    layers: int
    threshold: float
    error: float
    bytes: int
    measured: float


def folding_curve(
    model: nn.Module,
    measure: Callable[[nn.Module], float],
    only: Selector | None = None,
    recalibrate: Sequence[Any] | None = None,
) -> Iterator[Folded]:
    """From the network with all its layers to the fewest that `fold` can leave; `only` and `recalibrate` as there."""
    for count, threshold in levels(model, only).items():
        small = fold(model, layers=count, only=only, recalibrate=recalibrate).eval()
        error = max(folding.error for folding in small.__dict__["paretorch_folding"])
        yield Folded(count, threshold, error, sizes(small).total, measure(small))
