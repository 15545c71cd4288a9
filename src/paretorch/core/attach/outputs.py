"""Relaxations of outputs: which modules can have one, and what channels that are removed mean for them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from paretorch.core.attach.activations import Spot, has_state, only
from paretorch.core.attach.choose import Selection
from paretorch.core.relaxation import Chain
from paretorch.errors import ConfigError


def check_output(spot: Spot, method: Selection, cut: bool) -> None:
    """Refuse an output that cannot be relaxed. cut: channels will be removed."""
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
