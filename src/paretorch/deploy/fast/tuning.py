"""Which setting runs a packed layer fastest: measured once a process for each kind of layer, with weights that come from memory."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from paretorch.deploy.fast.codes import WIDTHS
from paretorch.deploy.fast.measure import Call, Timer, is_faster
from paretorch.deploy.fast.packed_linear import PackedLinear
from paretorch.deploy.fast.packing import Order, Packed
from paretorch.deploy.fast.settings import SETTINGS, Setting
from paretorch.deploy.fast.stand_in import stand_in
from paretorch.errors import ConfigError

_MOST_COPIES = 32
_known: dict[object, Tuned] = {}


class Tuned(NamedTuple):
    """The setting, the milliseconds of a call with it, and how many were measured."""

    setting: Setting
    milliseconds: float
    tried: int


def tuned(layer: PackedLinear, x: Tensor, timer: Timer, settings: Sequence[Setting] = SETTINGS) -> Tuned:
    """The fastest setting for layers of this shape, these widths and about this batch; what it is tuned to, unless beaten."""
    rows = x.numel() // x.shape[-1]
    counts = tuple(len(getattr(layer, f"words{width}")) for width in WIDTHS)
    batch = next(limit for limit in (1, 8, 16) if rows <= limit)
    shape = layer.out_features, layer.in_features
    key = (x.device, shape, counts, layer.odd, layer.order, layer.bias is not None, batch, tuple(settings))
    if key not in _known:
        _known[key] = measure(layer, x, timer, settings)
    return _known[key]


def measure(layer: PackedLinear, x: Tensor, timer: Timer, settings: Sequence[Setting]) -> Tuned:
    """As `tuned`, without a memory. Settings that the GPU has no room for are left out."""
    own = Setting(layer.tuning, layer.packed.tile)
    count = _copies(layer, x.device)
    copies: dict[tuple[int, int], list[Packed]] = {}
    calls: dict[str, Call] = {}
    wanted = {str(setting): setting for setting in [own, *settings]}
    for name, setting in wanted.items():
        if setting.tile != own.tile and layer.order is not Order.FULL:
            continue  # it had to be packed anew to know
        if setting.tile not in copies:
            copies[setting.tile] = [copy.deepcopy(_cut(layer, setting.tile)) for _ in range(count)]
        call = _in_turn([_run_by(packed, layer, setting) for packed in copies[setting.tile]], x)
        try:
            call()
        except Exception:  # Triton has its own types for what does not fit into shared memory
            continue
        calls[name] = call
    if not calls:
        raise ConfigError("the kernel for packed weights does not run here")
    times = timer(calls)
    best = min(times, key=lambda name: statistics.median(times[name]))
    if str(own) in times and not is_faster(times[str(own)], times[best]):
        best = str(own)
    return Tuned(wanted[best], statistics.median(times[best]) / count, len(times))


def _cut(layer: PackedLinear, tile: tuple[int, int]) -> Packed:
    packed = layer.packed
    if tile == packed.tile:
        return packed
    width = next(width for width, words in zip(WIDTHS, packed.words, strict=True) if len(words))
    return stand_in(packed.shape, tile, width, packed.odd, packed.rows.device)


def _run_by(packed: Packed, layer: PackedLinear, setting: Setting) -> PackedLinear:
    result = PackedLinear(packed, layer.bias)
    result.tuning = setting.tuning
    return result


def _copies(layer: PackedLinear, device: torch.device) -> int:
    """So many that none is still in the cache when its turn comes again."""
    cache = torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else 0
    return max(1, min(_MOST_COPIES, -(-3 * cache // max(1, layer.packed.bytes))))


def _in_turn(layers: list[PackedLinear], x: Tensor) -> Callable[[], object]:
    return lambda: [layer(x) for layer in layers]
