"""Which faster layer could replace a layer, with which setting of its kernel, and the replacing itself.

A replacement is built only if it might be faster; whether it is gets measured (`optimize_model`). The settings of a kernel are
measured once per process and kind of layer, with weights that are not in the cache.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from paretorch.deploy.fast import launch
from paretorch.deploy.fast.codes import WIDTHS, WORD
from paretorch.deploy.fast.launch import SETTINGS, Setting
from paretorch.deploy.fast.layers import PackedLinear, SparseLinear, SparsePointwise
from paretorch.deploy.fast.packing import Order, Packed
from paretorch.deploy.measure.latency import Call, Timer, is_faster
from paretorch.deploy.packed.few_bits import WIDTHS as FEW_WIDTHS
from paretorch.deploy.packed.find import pack_values
from paretorch.deploy.packed.layers import FewBitLinear
from paretorch.deploy.packed.swap import has_own_forward, leave_fused_paths
from paretorch.errors import ConfigError
from paretorch.support.inputs import ModelCall

_MIN_ZEROS = 0.5
"""With fewer, compressed rows, which have an index per value, are no smaller than the dense weight."""
_MAX_COPIES = 32
_tuned: dict[object, Tuned] = {}


class Replacement(NamedTuple):
    """A layer to be measured against the dense one, and the setting that was chosen for it, if any."""

    kind: str
    module: nn.Module
    setting: str = ""


def could_be_replaced(module: nn.Module) -> bool:
    """Return whether this is a Linear layer or a 1 × 1 convolution, or a subclass of one with a forward pass of its own.

    Such a subclass is never replaced, but listed among the choices (`why_kept`).
    """
    if not isinstance(module, nn.Linear | nn.Conv2d):
        return False
    if isinstance(module, nn.Conv2d) and not has_own_forward(module):
        return module.kernel_size == (1, 1) and module.groups == 1 and module.padding in ((0, 0), "valid", "same")
    return True


def find_replacements(layer: nn.Module, inputs: list[Tensor], timer: Timer) -> list[Replacement] | str:
    """Return what could replace the layer, or why nothing can. The timer chooses between settings of one kernel."""
    assert isinstance(layer, nn.Linear | nn.Conv2d)
    if not inputs:
        return "the example does not reach it"
    if layer.weight.device.type == "cpu":
        return _cpu_layers(layer, inputs)
    if isinstance(layer, nn.Conv2d):
        return f"no faster convolution for {layer.weight.device.type}"
    found = _packed_layer(layer, inputs, timer)
    return found if isinstance(found, str) else [found]


def _cpu_layers(layer: nn.Linear | nn.Conv2d, inputs: list[Tensor]) -> list[Replacement] | str:
    tried = [_sparse_layer(layer, inputs)] + ([_few_bit_layer(layer, inputs)] if isinstance(layer, nn.Linear) else [])
    found = [one for one in tried if isinstance(one, Replacement)]
    return found or ", and ".join(one for one in tried if isinstance(one, str))


def _few_bit_layer(layer: nn.Linear, inputs: list[Tensor]) -> Replacement | str:
    if layer.weight.dtype != torch.float32 or any(x.dtype != torch.float32 for x in inputs):
        return "packed weights compute in float32 alone"
    weight = pack_values(layer.weight)
    if weight is None:
        return "its weights are on no grid of 2, 4 or 8 bits"
    shares = ", ".join(f"{width}" for width, count in zip(FEW_WIDTHS, weight.blocks, strict=False) if count)
    return Replacement("packed", FewBitLinear(weight, layer.bias), f"{shares or 0} bits")


def _sparse_layer(layer: nn.Linear | nn.Conv2d, inputs: list[Tensor]) -> Replacement | str:
    weight = layer.weight
    zeros = float((weight == 0).float().mean())
    if zeros < _MIN_ZEROS:
        return f"{zeros:.0%} zeros: too few to skip"
    if weight.dtype not in (torch.float32, torch.float64) or any(x.dtype != weight.dtype for x in inputs):
        return f"{weight.dtype} has no sparse product on a CPU: use float32"
    return Replacement("csr", SparseLinear.of(layer) if isinstance(layer, nn.Linear) else SparsePointwise.of(layer))


def _packed_layer(layer: nn.Linear, inputs: list[Tensor], timer: Timer) -> Replacement | str:
    device = layer.weight.device
    if not launch.runs_on(device):
        return f"no faster kernel for {device.type}" + (" without triton" if device.type == "cuda" else "")
    if any(x.dtype != torch.bfloat16 for x in inputs):
        return "its input is not bfloat16"
    rows = max(x.numel() // x.shape[-1] for x in inputs)
    if rows > launch.LARGEST_BATCH:
        return f"{rows} rows of input: packed weights pay up to {launch.LARGEST_BATCH}"
    try:
        packed = PackedLinear.of(layer)
        found = fastest_setting(packed, max(inputs, key=Tensor.numel), timer)
        if found.setting.tile != packed.packed.tile:
            packed = PackedLinear.of(layer, found.setting.tile)
    except ConfigError as error:
        return str(error)
    packed.tuning = found.setting.tuning
    return Replacement("packed", packed, f"{found.setting}: the best of {found.tried}")


def capture_inputs(model: nn.Module, call: ModelCall, layers: Iterable[nn.Module]) -> dict[nn.Module, list[Tensor]]:
    """Run the model once and return, for each layer, the inputs of all of its calls; none if it is not reached."""
    inputs: dict[nn.Module, list[Tensor]] = {layer: [] for layer in layers}

    def record(layer: nn.Module, given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        one: Tensor = given[0] if given else named["input"]
        inputs[layer].append(one.detach().clone())

    handles = [layer.register_forward_pre_hook(record, with_kwargs=True) for layer in inputs]
    try:
        call(model)
    finally:
        for handle in handles:
            handle.remove()
    return inputs


def replace_modules(model: nn.Module, swaps: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """Return a copy with some modules replaced; it shares the tensors of the others with the model."""
    shared: dict[int, Any] = {id(t): t for t in [*model.parameters(), *model.buffers()]}
    shared |= {id(old): new for old, new in swaps.items()}
    result = copy.deepcopy(model, shared)
    leave_fused_paths(result, swaps)
    return result


def random_tiles(
    shape: tuple[int, int], tile: tuple[int, int], widths: Tensor | int, odd: bool, device: torch.device | str
) -> Packed:
    """Return a packed weight with random codes, to measure with: the time of a product does not depend on the codes.

    Args:
        widths: The width of each tile (row tile, block), or of all tiles. Weights are between −2 and 2.
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


class Tuned(NamedTuple):
    """The setting, the milliseconds of a call with it, and how many settings were measured."""

    setting: Setting
    milliseconds: float
    tried: int


def fastest_setting(layer: PackedLinear, x: Tensor, timer: Timer, settings: Sequence[Setting] = SETTINGS) -> Tuned:
    """Return the fastest setting for layers of this shape, these widths and about this batch; in doubt the layer's own."""
    rows = x.numel() // x.shape[-1]
    counts = tuple(len(getattr(layer, f"words{width}")) for width in WIDTHS)
    batch = next(limit for limit in (1, 8, 16) if rows <= limit)
    shape = layer.out_features, layer.in_features
    key = (x.device, shape, counts, layer.odd, layer.order, layer.bias is not None, batch, tuple(settings))
    if key not in _tuned:
        _tuned[key] = measure_settings(layer, x, timer, settings)
    return _tuned[key]


def measure_settings(layer: PackedLinear, x: Tensor, timer: Timer, settings: Sequence[Setting]) -> Tuned:
    """As `fastest_setting`, without its cache. Settings for which the GPU has too little memory are skipped."""
    own = Setting(layer.tuning, layer.packed.tile)
    count = _copies(layer, x.device)
    copies: dict[tuple[int, int], list[Packed]] = {}
    calls: dict[str, Call] = {}
    wanted = {str(setting): setting for setting in [own, *settings]}
    for name, setting in wanted.items():
        if setting.tile != own.tile and layer.order is not Order.FULL:
            continue  # the weight would have to be packed again
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
    """Return how many copies to use in turn, so that each has left the cache when it is used again."""
    cache = torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else 0
    return max(1, min(_MAX_COPIES, -(-3 * cache // max(1, layer.packed.bytes))))


def _in_turn(layers: list[PackedLinear], x: Tensor) -> Callable[[], object]:
    return lambda: [layer(x) for layer in layers]
