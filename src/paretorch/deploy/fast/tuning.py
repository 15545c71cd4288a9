"""Which setting runs a packed layer fastest: measured once per process and kind of layer, with weights that come from memory."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from paretorch.deploy.fast.codes import WIDTHS, WORD
from paretorch.deploy.fast.layers import PackedLinear
from paretorch.deploy.fast.packing import Order, Packed
from paretorch.deploy.fast.settings import SETTINGS, Setting
from paretorch.deploy.fast.timers import Call, Timer, is_faster
from paretorch.errors import ConfigError


def random_tiles(
    shape: tuple[int, int], tile: tuple[int, int], widths: Tensor | int, odd: bool, device: torch.device | str
) -> Packed:
    """Return a packed weight with random codes, to measure with: the time of a product does not depend on the codes.

    Args:
        widths: Of each tile (row tile, block), or of all tiles. Weights are between −2 and 2.
    """
    tiles, blocks = (-(-size // step) for size, step in zip(shape, tile, strict=True))
    wide = torch.full((tiles, blocks), widths) if isinstance(widths, int) else widths
    words, places, spans = [], [], []
    for width in WIDTHS:
        here = wide == width
        size = (int(here.sum()), tile[0], tile[1] * width // WORD)
        words.append(torch.randint(-(1 << 15), 1 << 15, size, dtype=torch.int16, device=device))
        places.append(here.nonzero()[:, 1].to(device, torch.int32))
        ends = here.sum(1).cumsum(0)
        spans.append(torch.stack([ends - here.sum(1), ends], dim=1))
    exponents = torch.tensor([[2 - odd - width] for width in WIDTHS], dtype=torch.int32).expand(-1, tiles * tile[0])
    rows = torch.arange(tiles * tile[0], dtype=torch.int32).clamp_max(shape[0])
    return Packed(
        shape,
        odd,
        (words[0], words[1], words[2]),
        (places[0], places[1], places[2]),
        torch.stack(spans, dim=1).to(device, torch.int32),
        exponents.contiguous().to(device),
        rows.to(device),
    )


_MOST_COPIES = 32
_known: dict[object, Tuned] = {}


class Tuned(NamedTuple):
    """The setting, the milliseconds of a call with it, and how many settings were measured."""

    setting: Setting
    milliseconds: float
    tried: int


def fastest_setting(layer: PackedLinear, x: Tensor, timer: Timer, settings: Sequence[Setting] = SETTINGS) -> Tuned:
    """Return the fastest setting for layers of this shape, these widths and about this batch; the layer's own unless beaten."""
    rows = x.numel() // x.shape[-1]
    counts = tuple(len(getattr(layer, f"words{width}")) for width in WIDTHS)
    batch = next(limit for limit in (1, 8, 16) if rows <= limit)
    shape = layer.out_features, layer.in_features
    key = (x.device, shape, counts, layer.odd, layer.order, layer.bias is not None, batch, tuple(settings))
    if key not in _known:
        _known[key] = measure_settings(layer, x, timer, settings)
    return _known[key]


def measure_settings(layer: PackedLinear, x: Tensor, timer: Timer, settings: Sequence[Setting]) -> Tuned:
    """As `fastest_setting`, without its cache. Settings that the GPU has no room for are left out."""
    own = Setting(layer.tuning, layer.packed.tile)
    count = _copies(layer, x.device)
    copies: dict[tuple[int, int], list[Packed]] = {}
    calls: dict[str, Call] = {}
    wanted = {str(setting): setting for setting in [own, *settings]}
    for name, setting in wanted.items():
        if setting.tile != own.tile and layer.order is not Order.FULL:
            continue  # it would have to be packed anew
        if setting.tile not in copies:
            copies[setting.tile] = [copy.deepcopy(_cut(layer, setting.tile)) for _ in range(count)]
        call = _in_turn([_run_by(packed, layer, setting) for packed in copies[setting.tile]], x)
        try:
            call()
        except Exception:  # Triton has its own exceptions for what does not fit into shared memory
            continue
        calls[name] = call
    if not calls:
        raise ConfigError("The kernel for packed weights does not run here")
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
    return random_tiles(packed.shape, tile, width, packed.odd, packed.rows.device)


def _run_by(packed: Packed, layer: PackedLinear, setting: Setting) -> PackedLinear:
    result = PackedLinear(packed, layer.bias)
    result.tuning = setting.tuning
    return result


def _copies(layer: PackedLinear, device: torch.device) -> int:
    """Return how many copies to use in turn, so that none is still in the cache when it is used again."""
    cache = torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else 0
    return max(1, min(_MOST_COPIES, -(-3 * cache // max(1, layer.packed.bytes))))


def _in_turn(layers: list[PackedLinear], x: Tensor) -> Callable[[], object]:
    return lambda: [layer(x) for layer in layers]
