"""A budget in milliseconds: how many channels to aim for while searching, and how to land on the measured time of the network.

Layers were measured one by one (`paretorch.core.channels.times`), and what is left of the sum of their times is the share that the search steers to.
The time of the whole network is about a straight line in that share, which is measured: before the search at the whole network, at the
smallest one and at one that lost equally much everywhere; at `harden` at the network as it is really cut, until its time is within the budget.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from paretorch.core.channels.coupling import Coupling
from paretorch.core.channels.shares import LATENCY
from paretorch.core.method import Couples, Method
from paretorch.edits import Edit
from paretorch.edits.keep_channels import channel_edits
from paretorch.errors import ConfigError, MissedTargetWarning, PareWarning, warn

_LOW, _AIM = 0.95, 0.98  # of the budget: where the measured time must be, at most 1, and what is aimed for
_MISSED = 1.05  # times the budget: more than that is worth a warning
_FASTER = 0.97  # times the dense network: what takes longer than that is not measurably faster
_TRIES = 5  # networks that are cut and measured at `harden`
_EVEN = 2  # networks that are measured before the search, between the smallest and the whole one


class Stopwatch(Protocol):
    """Measures on this machine, under one runtime. What it says is the same on all ranks, and again if it is asked again."""

    def layer(self, weight: str, rows: Sequence[int], columns: Sequence[int]) -> Sequence[Sequence[float]]:
        """Return the milliseconds of the layer of a weight with so many rows and columns, for each pair of these."""

    def network(self, edits: Sequence[Edit]) -> float:
        """Return the milliseconds of the exported network after these edits; without any, of the dense one."""


@dataclass(frozen=True)
class Point:
    """A network that was measured: what was left of the sum of its layers' times, and its own milliseconds."""

    share: float
    milliseconds: float


@dataclass(frozen=True)
class LatencyBudget:
    """Keeps the measured time of a plan's network between 0.95 and 1.00 of `target` milliseconds, as far as whole blocks of channels allow.

    share: what the search steers to. least, dense: the smallest network and the whole one.
    """

    target: float
    stopwatch: Stopwatch
    share: float
    least: Point
    dense: Point

    def fit(self, cut: Callable[[float], Point]) -> float:
        """Return the factor of the target share by which `cut` gives a network that is within the budget.

        Args:
            cut: Rounds to a factor times the target share, and measures the network that is left.
        """
        if self.dense.milliseconds <= self.target:
            return 1.0
        low, high = self.least, self.dense
        tried: list[tuple[float, Point]] = []
        share = self.share
        for _ in range(_TRIES):
            point = cut(share / self.share)
            tried.append((share, point))
            if _LOW * self.target <= point.milliseconds <= self.target:
                return share / self.share
            if point.milliseconds > self.target:
                high = point if point.share < high.share else high
            else:
                low = point if point.share > low.share else low
            wanted = between(low, high, _AIM * self.target)
            if any(abs(wanted - one) < 1e-4 for one, _ in tried):
                break
            share = wanted
        share, point = min(tried, key=lambda one: _distance(one[1].milliseconds, self.target))
        if not 2 - _MISSED <= point.milliseconds / self.target <= _MISSED:
            self._warn(point)
        return share / self.share

    def _warn(self, point: Point) -> None:
        warn(
            f"latency: the network takes {point.milliseconds:.3g} ms, not {self.target:.3g} ms, since channels go in blocks: "
            "use a smaller multiple=, or another latency",
            MissedTargetWarning,
        )


def _distance(milliseconds: float, target: float) -> tuple[bool, float]:
    """How far a time is from the target; those that are above it by more than a little come last."""
    return milliseconds > _MISSED * target, abs(milliseconds - target)


def between(low: Point, high: Point, milliseconds: float) -> float:
    """Return the share at which a straight line through two points has so many milliseconds; never beyond them."""
    rise = high.milliseconds - low.milliseconds
    part = 0.5 if rise <= 0.0 else (milliseconds - low.milliseconds) / rise
    return low.share + min(max(part, 0.0), 1.0) * (high.share - low.share)


def require_cuts(methods: Sequence[Method], has_example: bool) -> None:
    """Refuse methods that remove no channels."""
    if not has_example:
        raise ConfigError(
            "latency= is measured and removes channels: give example=, a batch of inputs as they will come"
        )
    couples = [method for method in methods if isinstance(method, Couples) and method.group == "channel"]
    if not couples:
        raise ConfigError(
            'latency= needs a method that removes channels: give ContinuousSparsification(group="channel")'
        )
    if couples[0].share is not None:
        raise ConfigError("latency= says how many channels go: leave out target=")


def with_latency(methods: Sequence[Method], share: float) -> tuple[Method, ...]:
    """Return the methods; the one that removes channels has a target of this share of the time."""
    return tuple(
        method.with_latency(share) if isinstance(method, Couples) and method.group == "channel" else method
        for method in methods
    )


def likely_share(stopwatch: Stopwatch, target: float) -> float:
    """Return about what is left of the layers, before these are measured."""
    return min(target / stopwatch.network(()), 1.0)


def plan_latency(coupling: Coupling, block: int, target: float, stopwatch: Stopwatch) -> LatencyBudget:
    """Measure the layers and some networks, and return what to steer to; raises if no cut meets the target.

    Args:
        block: Layers keep a multiple of so many channels.
    """
    coupling.measure(stopwatch.layer, block)
    dense = Point(1.0, stopwatch.network(()))
    if target >= dense.milliseconds:
        warn(
            f"latency: the network takes {dense.milliseconds:.3g} ms already, which is within {target:.3g} ms, so nothing is removed",
            PareWarning,
        )
        return LatencyBudget(target, stopwatch, 1.0, dense, dense)
    least = _measured(coupling, coupling.fewest(), coupling.evenly(), block, stopwatch)
    if least.milliseconds >= _FASTER * dense.milliseconds or least.share >= _FASTER:
        raise ConfigError(
            f"latency: no cut makes this network or its layers faster here: it takes {dense.milliseconds:.3g} ms with all channels and "
            f"{least.milliseconds:.3g} ms with the fewest; leave out latency="
        )
    if least.milliseconds > target:
        raise ConfigError(
            f"latency: the network takes at least {least.milliseconds:.3g} ms, with {block} channels in each layer that can be cut, and "
            f"{target:.3g} ms was asked for: allow more, or let more layers be cut"
        )
    low, high = least, dense
    share = between(low, high, _AIM * target)
    for _ in range(_EVEN):
        score = coupling.evenly()
        point = _measured(coupling, coupling.keep_best(score, share, LATENCY, block), score, block, stopwatch)
        low, high = (low, point) if point.milliseconds > target else (point, high)
        share = between(low, high, _AIM * target)
        if _LOW * target <= point.milliseconds <= target:
            share = point.share
            break
    return LatencyBudget(target, stopwatch, max(share, least.share), least, dense)


def _measured(coupling: Coupling, keep: Tensor, score: Tensor, block: int, stopwatch: Stopwatch) -> Point:
    share = float(coupling.share(keep, LATENCY, block))
    return Point(share, stopwatch.network(channel_edits(coupling.kept(coupling.pad(keep, score, block)))))
