"""Relaxations of outputs: which modules get one, and what channels that are removed mean for them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from paretorch.core.attach.activations import Spot, find_spots, has_state, only
from paretorch.core.attach.choose import choose_sites
from paretorch.core.attach.sites import find_sites
from paretorch.core.groups import grouping
from paretorch.core.method import Method
from paretorch.core.relaxation import Chain
from paretorch.core.step.noise import seed_for
from paretorch.errors import ConfigError


def relax_outputs(
    methods: Sequence[Method], model: nn.Module, example: Tensor | None, seed: int, cut: bool
) -> list[tuple[Spot, Chain]]:
    """The spots of the methods on activations, each with the chain that will sit there. cut: channels will be removed."""
    made: list[tuple[Spot, Chain]] = []
    for method in methods:
        spots = find_spots(model, example, type(method).__name__)
        for spot in choose_sites(method, spots, find_sites(model, dims=0)):
            assert isinstance(spot, Spot)
            own = method.for_site(spot)
            _check(spot, own, cut)
            grid = grouping(own.group, spot.name, spot.weight, spot.channel_axis)
            made.append((spot, Chain([own.relax(spot, grid, seed_for(seed, spot.name), {method.room})])))
    return made


def _check(spot: Spot, method: Method, cut: bool) -> None:
    if len(set(spot.shapes)) > 1:
        raise ConfigError(
            f"{spot.name} gives outputs of different shapes, {spot.shapes[0]} and {spot.shapes[-1]}: "
            "use a module of its own at each place, or exclude it"
        )
    if has_state(spot.module):  # which would get other keys
        raise ConfigError(
            f"{spot.name}, a {type(spot.module).__name__}, has weights or statistics of its own: exclude it, or put an "
            "activation behind it, such as nn.Identity(), and quantize the output of that"
        )
    if cut and method.group not in ("layer", "network"):
        raise ConfigError(
            f'{type(method).__name__}(group={method.group!r}) does not go with channels that are removed: use group="layer"'
        )


@contextmanager
def zeros_moved(spots: Sequence[tuple[Spot, Chain]]) -> Iterator[None]:
    """Let outputs that will have no level at zero be off zero, so that no channel that is read behind them is removed."""
    handles = [spot.module.register_forward_hook(_moved) for spot, chain in spots if not only(chain).keeps_zero]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _moved(_: nn.Module, __: Any, output: Tensor) -> Tensor:
    return output + 1.0
