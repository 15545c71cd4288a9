"""What the quantization rivals share: a number of bits per weight, and values that only a grid of 2^bits holds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from paretorch.core.attach.sites import Selector, Site, choose, find_sites
from paretorch.core.groups import Group, Grouping
from paretorch.core.method import Method, Term
from paretorch.core.relaxation import Relaxation
from paretorch.errors import ConfigError, warn
from paretorch.support.sharded import whole

TINY = 1e-8  # the least scale: a layer of zeros has a grid, too


@dataclass(frozen=True, kw_only=True)
class Rival(Method):
    """bits: of every selected weight; `overrides` may give other bits to some layers (see `first_and_last`)."""

    group: Group = "layer"
    bits: int = 2

    kind: ClassVar[str] = "precision"
    unit: ClassVar[str] = "bits"
    order: ClassVar[int] = 1
    per_layer: ClassVar[frozenset[str]] = frozenset({"bits"})
    widths: ClassVar[tuple[int, ...]] = tuple(range(1, 9))  # the bits that the method is defined for
    grouped: ClassVar[tuple[str, ...]] = ("layer",)  # what may share a grid

    def check(self) -> None:
        super().check()
        name = type(self).__name__
        if type(self.bits) is not int or self.bits not in self.widths:
            raise ConfigError(f"bits={self.bits!r}: {name} takes {', '.join(map(str, self.widths))}")
        if self.group not in self.grouped:
            known = " or ".join(f'"{one}"' for one in self.grouped)
            raise ConfigError(f"group={self.group!r}: {name} has one grid for each {known}")

    def warn_all_zero(self, site: Site) -> None:
        """For methods that take the size of a layer's grid from its weights at the start, and keep it."""
        if not bool(site.weight.detach().any()):
            warn(
                f"{site.name} is all zeros, and the scale that {type(self).__name__} takes from them for good leaves it "
                "about there: initialize it, or exclude it"
            )

    def schedule(self, term: Term, step: Tensor) -> None:
        """Most rivals have no schedule."""

    def round(self, term: Term, factor: float) -> None:
        """Nothing is left to round: these values are on their grid from the first step on. `hard` settles the grid."""

    def with_target(self, share: float) -> Self:
        return self

    def measure(self, term: Term) -> dict[str, Tensor]:
        return {"bits": average_bits(term)}


class Quantized(Relaxation):
    """A weight on a grid of 2^precision values."""

    kind: ClassVar[str] = "precision"

    def __init__(self, grouping: Grouping, precision: int, start: float, device: torch.device) -> None:
        super().__init__(grouping, start, device)
        self.precision = precision

    def settled(self) -> Tensor:
        """The decision; once hard without a gradient but in the graph, since DDP waits for every parameter."""
        s = self.grid()
        return s.detach() + 0.0 * s if self.hard else s

    def bits(self, s: Tensor) -> Tensor:
        return s.new_full((1,) * len(self.grouping.shape), float(self.precision))


class Stack(Grouping):
    """Several numbers for each group: (n, *grid). As a decision about the weight, the first of them stands for all."""

    def __init__(self, inner: Grouping, rows: int) -> None:
        super().__init__()
        self.inner = inner
        self.shape, self.grid, self.sizes = inner.shape, (rows, *inner.grid), inner.sizes

    def expand(self, decision: Tensor) -> Tensor:
        return self.inner.expand(decision[0])

    def reduce(self, values: Tensor) -> Tensor:
        return self.inner.reduce(values)


def straight_through(value: Tensor, soft: Tensor) -> Tensor:
    """Exactly `value`, with the gradient of `soft`: the straight-through estimator."""
    return value + (soft - soft.detach())


def outermost(bits: int) -> float:
    """About where the outermost of 2^bits evenly spaced values belongs, in deviations of a normal distribution."""
    return min(0.8 + 0.7 * (bits - 1), 4.0)


def deviation(weight: Tensor) -> Tensor:
    """The deviation of a layer's weights; where they are all the same, as in a layer of one, their size."""
    spread, size = weight.std(correction=0), weight.square().mean().sqrt()
    return torch.where(spread > 1e-5 * size, spread, size)


def average_bits(term: Term) -> Tensor:
    """Bits per selected weight; one that another method drops counts 0."""
    found = []
    for r, chain in zip(term.relaxations, term.chains, strict=True):
        own, kept = r.bits(r.grid(whole(r.decision))), chain.survives()
        assert own is not None
        found.append((own if kept is None else own * kept).expand(r.grouping.shape).sum())
    return torch.stack(found).sum() / term.weights


def first_and_last(model: nn.Module, bits: int, exclude: Selector = ()) -> Mapping[str, Mapping[str, Any]]:
    """`overrides` that give other bits to the first and the last selected weight, as most papers do."""
    sites = choose([site for site in find_sites(model) if site.weight.dim() > 1], None, exclude)
    if not sites:
        raise ConfigError("the model has no layer whose first and last could have bits of their own")
    return {site.name: {"bits": bits} for site in (sites[0], sites[-1])}
