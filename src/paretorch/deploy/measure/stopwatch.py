"""A stopwatch for latency budgets: the time of single layers and of whole exported networks, under one runtime on this machine's CPU.

Networks are timed in turns with the dense one, in several rounds. What is said of a network is the median of its share of the
dense network's time, times what that took at first: a machine that slows down slows both. Layers that are alike are timed once per process.
"""

from __future__ import annotations

import statistics
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from paretorch.deploy.measure.latency import Call, timed_rounds
from paretorch.deploy.measure.latency_process import file_call
from paretorch.deploy.measure.layer_calls import LayerShape, onnxruntime_layer, torch_layer
from paretorch.deploy.onnx import export_onnx
from paretorch.deploy.plain import copied
from paretorch.edits import Edit
from paretorch.errors import ConfigError, MissingExtraError, PareWarning
from paretorch.support.eval_mode import Hook, run_example, watched
from paretorch.support.inputs import Example, ModelCall, read_example
from paretorch.support.text import parse_milliseconds

_ROUNDS, _SECONDS = 11, 0.15  # of whole networks
_REPEATS, _SURE = 4, 0.015  # of the rounds, until the median ratio is known so well
_ANY = 1e6  # how far off outputs may be: the file is timed, and not used
_LAYER_ROUNDS, _LAYER_SECONDS = 3, 0.003  # of each layer at each size


class Timed(Protocol):
    """A runtime whose calls can be timed."""

    name: str

    def network(self, model: nn.Module, call: ModelCall) -> Call:
        """Return a call of a plain network in evaluation mode."""

    def layer(self, shape: LayerShape) -> Call:
        """Return a call of one layer."""


class Onnxruntime:
    """Networks as `export_onnx` writes them."""

    name = "onnxruntime"

    def __init__(self, threads: int) -> None:
        for package in ("onnx", "onnxscript", "onnxruntime"):
            if find_spec(package) is None:
                raise MissingExtraError(
                    f"latency= is measured under onnxruntime and needs {package}: pip install 'paretorch[export]', or give "
                    'runtime="torch"'
                )
        self._threads = threads

    def network(self, model: nn.Module, call: ModelCall) -> Call:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "network.onnxruntime"
            with warnings.catch_warnings(action="ignore", category=PareWarning):  # of a file that nobody keeps
                export_onnx(model, call, path, weights="fp32", tolerance=_ANY)
            return file_call(path, call.tensors, self._threads)

    def layer(self, shape: LayerShape) -> Call:
        return onnxruntime_layer(shape, self._threads)


class Torch:
    """Networks as they are, on the CPU."""

    name = "torch"

    def network(self, model: nn.Module, call: ModelCall) -> Call:
        return torch.inference_mode()(lambda: call(model))

    def layer(self, shape: LayerShape) -> Call:
        return torch.inference_mode()(torch_layer(shape))


def timed_runtime(name: str | None, threads: int) -> Timed:
    """Return the runtime in which a network is timed that will run in the named one; None: onnxruntime."""
    if name == "torch":
        return Torch()
    if name is None or name.startswith("onnxruntime"):
        return Onnxruntime(threads)
    raise ConfigError(
        f'latency= is measured under onnxruntime or torch, not {name!r}: leave out runtime=, or give runtime="torch"'
    )


Timer = Callable[[Mapping[str, Call], int, float], Mapping[str, Sequence[float]]]

_LAYERS: dict[tuple[str, int, LayerShape], float] = {}  # milliseconds, by runtime, threads and layer


class NetworkStopwatch:
    """Times a network and its layers; `paretorch.core.finish.latency_budget.Stopwatch` says what each method returns.

    Args:
        model: The dense network; it is copied.
        example: A batch as it will come.
        timer: Times calls by turns, given rounds and seconds.
    """

    def __init__(self, model: nn.Module, example: Example, runtime: Timed, timer: Timer = timed_rounds) -> None:
        self._call = read_example(example).map(lambda tensor: tensor.detach()).to("cpu")
        self._model = copied(model, "latency=").cpu().requires_grad_(False)
        self._runtime, self._timer = runtime, timer
        self._threads = torch.get_num_threads()
        self._dense: Call | None = None
        self._known: dict[tuple[Edit, ...], float] = {}
        self._shapes: dict[str, list[LayerShape]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> NetworkStopwatch:
        return self  # a copy of a plan measures the same network

    def network(self, edits: Sequence[Edit]) -> float:
        """Return the milliseconds of the exported network after these edits."""
        key = tuple(edit for edit in edits if edit.structural)
        if key not in self._known:
            self._known[key] = _as_first_rank(lambda: self._measure(key))
        return self._known[key]

    def layer(self, weight: str, rows: Sequence[int], columns: Sequence[int]) -> list[list[float]]:
        """Return the milliseconds of a layer with so many rows and columns, for each pair of these."""
        if not self._shapes:
            self._shapes = self._find_shapes()
        runs = self._shapes.get(weight.rpartition(".")[0], [])

        def measure() -> list[list[float]]:
            cut = [[[one.cut(row, column) for one in runs] for column in columns] for row in rows]
            return [[sum(map(self._time_of, own)) for own in line] for line in cut]

        return _as_first_rank(measure)

    def _measure(self, edits: tuple[Edit, ...]) -> float:
        if self._dense is None:
            self._dense = self._runtime.network(self._model, self._call)
        calls = {"dense": self._dense}
        if edits:
            small = copied(self._model, "latency=")
            for edit in edits:
                edit.apply(small)
            calls["small"] = self._runtime.network(small, self._call)
        if not edits:
            return statistics.median(self._timer(calls, _ROUNDS, _SECONDS)["dense"])
        ratios: list[float] = []
        for _ in range(_REPEATS):
            times = self._timer(calls, _ROUNDS, _SECONDS)
            ratios += [b / a for a, b in zip(times["dense"], times["small"], strict=True)]
            if _doubt(ratios) <= _SURE:
                break
        return statistics.median(ratios) * self.network(())

    def _time_of(self, shape: LayerShape) -> float:
        key = self._runtime.name, self._threads, shape
        if key not in _LAYERS:
            times = self._timer({"layer": self._runtime.layer(shape)}, _LAYER_ROUNDS, _LAYER_SECONDS)
            _LAYERS[key] = min(times["layer"])
        return _LAYERS[key]

    def _find_shapes(self) -> dict[str, list[LayerShape]]:
        """The layers at every place where the network runs them, by module."""
        found: dict[str, list[LayerShape]] = {}
        kinds = nn.modules.conv._ConvNd | nn.Linear

        def note(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
            return lambda module, inputs, _: found.setdefault(name, []).append(LayerShape.of(module, inputs[0].shape))

        hooks: dict[nn.Module, Hook] = {
            module: note(name) for name, module in self._model.named_modules() if isinstance(module, kinds)
        }
        with watched(self._model, hooks):
            run_example(self._model, self._call)
        return found


def _doubt(values: Sequence[float]) -> float:
    """How far the median of many values may be off, relative to it: about its standard error."""
    if len(values) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(values, n=4)
    return float((high - low) / (middle * len(values) ** 0.5))


def stopwatch_for(
    model: nn.Module, example: Example, runtime: str | None, latency: str
) -> tuple[float, NetworkStopwatch]:
    """Return the milliseconds that a latency stands for, such as "5 ms" or "1/2", and what measures the network.

    Args:
        runtime: Where the network will run.
    """
    stopwatch = NetworkStopwatch(model, example, timed_runtime(runtime, torch.get_num_threads()))
    return parse_milliseconds(latency, lambda: stopwatch.network(())), stopwatch


TIMED_ONLY = ("onnxruntime", "torch")
"""What `runtime=` may say beside a latency that is no format of weights."""
T = TypeVar("T")


def _as_first_rank(measure: Callable[[], T]) -> T:
    """Return what the first rank measures, on every rank; all of them decide alike then."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return measure()
    found: list[Any] = [measure() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(found)
    measured: T = found[0]
    return measured
