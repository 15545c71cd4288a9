"""A budget in bytes of the saved file: what to aim for while searching, and how to land on it.

A mask of density d costs H(d) bits per weight, a kept weight its code. A generous budget buys bits and drops nothing, a small one buys about
`_KEPT_BITS` for each weight that it keeps. Before training the budget becomes targets for
the methods that have none; at `harden` the targets are scaled until the file, really encoded, fits, and those that were
given never up; at `finalize` what fine-tuning added is trimmed by zeroing the smallest weights.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from paretorch.core.attach.sites import Site
from paretorch.core.groups import grouping
from paretorch.core.method import Couples, Method
from paretorch.edits import Edit as Edit  # `plan` and `compress` import it with `Meter`
from paretorch.errors import ConfigError, MissedTargetWarning, warn
from paretorch.support.sharded import whole

Meter = Callable[[Mapping[str, Tensor], Sequence[Edit]], int]  # bytes of the file of a state after structural edits
Finish = Callable[[nn.Module], None]
_KEPT_BITS = 2.5  # bits of a kept weight where both density and precision are free, and the budget is small
_SMALL, _GENEROUS = 1.5, 2.5  # bits per weight, if zeros are codes: above, bits are worth more, and nothing is dropped
_MAP_BITS = 0.6  # about what a file pays for each weight that has its own precision
_GROUP_BITS = 16.0  # of the step or precision of a group
_LEAST_BITS = 0.1
_FLOAT_BITS = 26.6  # of a weight that keeps all of them, coded
_MUCH = 1.25  # times the budget: targets that take more were not meant for it
_FULL, _AIM = 0.975, 0.985  # of the budget at harden: room for what fine-tuning changes
_DOUBT = 1.05  # times the budget: training may make a file smaller by that
_LOWEST = 0.02  # of the targets, to which a budget may scale them


def assign_targets(
    methods: tuple[Method, ...], model: nn.Module, chosen: Mapping[str, list[Site]], budget: int, meter: Meter
) -> tuple[Method, ...]:
    """Methods without a target get one from the budget."""
    weights = {id(site.weight): site for sites in chosen.values() for site in sites}
    state = model.state_dict(keep_vars=True)
    # Whatever is trained starts from zeros here: ranks, which may start from different values, then have the same targets.
    trained = as_trained(torch.zeros_like(one) if _trains(one) else one for one in state.values())
    empty = {
        key: torch.zeros_like(value) if id(value) in weights else likely
        for (key, value), likely in zip(state.items(), trained, strict=True)
    }
    rest, count = meter(empty, ()), sum(site.weight.numel() for site in weights.values())
    available = 8 * (budget - rest) / count
    if available <= 0.02:
        raise ConfigError(
            f"budget={budget}: {rest} bytes go to what is not compressed (norms, biases, the index); allow at least {int(rest * 1.1)}"
        )
    on_weights = [method for method in methods if not method.on_activations]
    given = {method.unit: method.share for method in on_weights if method.share is not None}
    units = {method.unit for method in on_weights}
    if units == given.keys():
        _warn_of_lowering(on_weights, given, budget, rest, count)
    density, map_bits = given.get("kept", 1.0), _map_bits(on_weights, chosen)
    if "kept" in units and "kept" not in given:
        each = _FLOAT_BITS if "bits" not in units else map_bits if "bits" in given else _KEPT_BITS + map_bits
        # A kept weight has a bit at least, whatever the average that was asked for.
        density = min(_density(available - given.get("bits", 0.0), each), given.get("bits", 1.0))
        if any(method.codes_zeros and method.unit not in given for method in on_weights):
            generous = min(max((available - _SMALL) / (_GENEROUS - _SMALL), 0.0), 1.0)
            density += generous * (1.0 - density)
    bits = max((available - _entropy(density)) / density - map_bits, 1.0) * density
    if any(method.codes_zeros for method in on_weights):
        bits = max(available - map_bits, _LEAST_BITS)  # a mask costs nothing beside codes that tell zeros
    shares = {"kept": density, "bits": bits}
    return tuple(method.with_target(shares[method.unit]) for method in methods)


def _map_bits(methods: Sequence[Method], chosen: Mapping[str, list[Site]]) -> float:
    """Bits per weight that tell precisions apart: one per weight is dear, one per channel is next to nothing."""
    for method in methods:
        sites = chosen[method.kind]
        if method.unit == "bits" and sites:
            own = [grouping(method.for_site(s).group, s.name, s.weight, s.channel_axis) for s in sites]
            costs = [
                _MAP_BITS * math.prod(one.shape) if one.is_single else _GROUP_BITS * math.prod(one.grid) for one in own
            ]
            return min(sum(costs) / sum(site.weight.numel() for site in sites), _MAP_BITS)
    return _MAP_BITS


def _trains(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def as_trained(tensors: Iterable[Any]) -> Iterator[Any]:
    """The values, but with those that are alike at the start (norms, biases) as different as training makes them.

    A vector of ones is one number in a file; after training it takes four bytes per value.
    """
    generator = torch.Generator().manual_seed(0)
    for tensor in tensors:
        if not isinstance(tensor, Tensor):  # extra state of a module: for the meter to refuse
            yield tensor
            continue
        values = whole(tensor)
        if values.is_floating_point() and values.numel() > 1 and bool((values == values.flatten()[0]).all()):
            values = values + torch.rand(values.shape, generator=generator, dtype=torch.float32).to(values)
        yield values


def _warn_of_lowering(
    methods: Sequence[Method], given: Mapping[str, float], budget: int, rest: int, count: int
) -> None:
    """Rounding far below what was searched for costs accuracy: better to know before the search."""
    if any(isinstance(method, Couples) and method.counts != "weights" for method in methods):
        return
    wanted = given.get("bits", _FLOAT_BITS * given.get("kept", 1.0))
    if any(method.unit == "kept" and method.group == "weight" for method in methods):
        wanted += _entropy(given["kept"])
    size = rest + int(wanted * count / 8)
    if size > _MUCH * budget:
        warn(
            f"budget={budget}: the targets take about {size:,} bytes, so harden will lower them; "
            "ask for fewer bits or more zeros, or leave the targets to the budget",
            MissedTargetWarning,
        )


def _entropy(p: float) -> float:
    return 0.0 if p <= 0.0 or p >= 1.0 else -p * math.log2(p) - (1 - p) * math.log2(1 - p)


def _density(available: float, kept_bits: float) -> float:
    """The density at which the mask, and `kept_bits` for each kept weight, take `available` bits per weight."""
    if kept_bits <= available:
        return 1.0
    low, high = 0.0, 0.95  # a mask of few zeros costs more than it saves
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _entropy(middle) + middle * kept_bits <= available else (low, middle)
    return max(low, 1e-4)


class Rounding(Protocol):
    """What a budget needs of a plan: rounding that can be tried again, and the state that would be saved."""

    def round_again(self, before: list[Tensor], factor: float, given: frozenset[str]) -> None:
        """Round the trained decisions `before` with scaled targets, those of `given` kinds never up."""

    def resume_search(self, before: list[Tensor]) -> None:
        """Back to searching, with these decisions."""

    def plain_state_dict(self) -> dict[str, Tensor]:
        """The state that a file would hold."""

    def edits(self) -> list[Edit]:
        """What the file would say beside the values."""


@dataclass(frozen=True)
class ByteBudget:
    """Keeps the file of a plan's model between 0.95 and 1.00 of `target` bytes where its methods can reach that.

    `given`: kinds of the methods with a target of their own, which a file that is too small is no reason to exceed.
    `finish`: what is done to the plain network in the end, as the meter counts it.
    """

    target: int
    meter: Meter
    given: frozenset[str] = frozenset()
    finish: Finish | None = None

    def check(self, plan: Rounding, before: list[Tensor]) -> None:
        """Refuse, before training, what the smallest targets of all would not meet."""
        least = self._bytes(plan, before, _LOWEST)
        if least > _DOUBT * self.target:
            raise self._too_small(least)

    def _too_small(self, least: int) -> ConfigError:
        return ConfigError(
            f"budget={self.target}: the methods cannot get below {least} bytes; allow more, or compress more layers"
        )

    def fit(self, plan: Rounding, before: list[Tensor]) -> None:
        """Round again with scaled targets until the file fits; `before` are the decisions as they were trained."""
        size = self._bytes(plan, before, 1.0)
        if _FULL * self.target <= size <= _AIM * self.target:
            return
        low, high = (_LOWEST, 1.0) if size > self.target * _AIM else (1.0, 16.0)
        known = {1.0: size}
        for attempt in range(14):
            middle = _between(low, high, known, 0.5 * (_FULL + _AIM) * self.target, attempt)
            size = known[middle] = self._bytes(plan, before, middle)
            if _FULL * self.target <= size <= _AIM * self.target:
                return
            low, high = (middle, high) if size <= _AIM * self.target else (low, middle)
        least = self._bytes(plan, before, low)
        if least > self.target:
            plan.resume_search(before)
            raise self._too_small(least)

    def _bytes(self, plan: Rounding, before: list[Tensor], factor: float) -> int:
        plan.round_again(before, factor, self.given)
        return self.meter(plan.plain_state_dict(), plan.edits())

    def trim(self, state: dict[str, Tensor], names: list[str], edits: Sequence[Edit]) -> None:
        """Zero the smallest non-zero weights of the named tensors, ties by index, in place, until the file fits."""
        if self.meter(state, edits) <= self.target:
            return
        flat = torch.cat([state[name].flatten() for name in names])
        order = torch.argsort(flat.abs(), stable=True)
        order = order[flat[order] != 0]
        low, high = 1, len(order)
        while low < high:
            middle = (low + high) // 2
            fits = self.meter(_without(state, names, flat, order[:middle]), edits) <= self.target
            low, high = (low, middle) if fits else (middle + 1, high)
        state.update(_without(state, names, flat, order[:high]))


def _between(low: float, high: float, known: Mapping[float, int], wanted: float, attempt: int) -> float:
    """A factor to try next: where a power law through the ends has the wanted bytes; every third time the middle."""
    middle = math.sqrt(low * high)
    if attempt % 3 == 2:
        return middle
    if low in known and high in known:
        slope = math.log(known[high] / known[low]) / math.log(high / low)
        guess = low * (wanted / known[low]) ** (1.0 / slope) if slope > 0.0 else middle
    else:  # bytes in proportion to the target, about
        end = low if low in known else high
        guess = end * wanted / known[end]
    inside = (low * (high / low) ** 0.02, low * (high / low) ** 0.98)
    return guess if inside[0] < guess < inside[1] else middle


def _without(state: dict[str, Tensor], names: list[str], flat: Tensor, dropped: Tensor) -> dict[str, Tensor]:
    flat = flat.index_fill(0, dropped, 0.0)
    parts = flat.split([state[name].numel() for name in names])
    # By object, not by name: a tied weight stands under several names.
    changed = {id(state[name]): part.view(state[name].shape) for name, part in zip(names, parts, strict=True)}
    return {key: changed.get(id(value), value) for key, value in state.items()}
