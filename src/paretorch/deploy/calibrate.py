"""Ranges of activations from data, and with them an int8 network (post-training quantization).

`activation_ranges` looks at a module's own activations: for the start of α, for bounds, for a look. The int8 export
needs a range for every tensor of the ONNX graph: onnxruntime records those, with the same two ways to cut a range:

min-max     the smallest and the largest value seen
percentile  what is left after cutting (100 − q)/2 % of the values from either end: outliers do not widen the steps
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paretorch.core.attach.activations import BOUNDED
from paretorch.deploy.onnx.int8 import overrides
from paretorch.errors import ConfigError, MissingExtraError, PareError
from paretorch.support.checks import require_number
from paretorch.support.eval_mode import run_example, watched

_ACTIVATIONS: tuple[type[nn.Module], ...] = (nn.ReLU, nn.GELU, nn.SiLU, nn.LeakyReLU, *BOUNDED)
_SAMPLE = 2**16  # values of one activation and batch by which a percentile is told
_HINT = "give a percentile above 50, up to 100, such as 99.9, or None for the smallest and largest value"


def activation_ranges(
    model: nn.Module, batches: Iterable[Any], *, percentile: float | None = None
) -> dict[str, tuple[float, float]]:
    """Name of each activation module -> the range of its outputs in eval mode, over all batches.

    A batch is a tensor, or a tuple that begins with it. With a percentile the ranges of the batches are averaged.
    """
    check_percentile(percentile)
    looked_at = {module: name for name, module in model.named_modules() if isinstance(module, _ACTIVATIONS)}
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in looked_at.values()}
    with watched(model, {module: _recorder(seen[name], percentile) for module, name in looked_at.items()}):
        for inputs in inputs_of(batches):
            run_example(model, inputs)
    return {name: _joined(calls, percentile) for name, calls in seen.items() if calls}


def check_percentile(percentile: float | None) -> None:
    if percentile is not None:
        require_number("percentile", percentile, 50.0, 100.0, _HINT, above=True)


def inputs_of(batches: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors of the batches; at least one."""
    if isinstance(batches, Tensor) or not isinstance(batches, Iterable):
        raise ConfigError("calibration needs batches of inputs: a list or a loader of tensors, such as [x]")
    found = False
    for batch in batches:
        inputs = batch[0] if isinstance(batch, tuple | list) else batch
        if not isinstance(inputs, Tensor) or inputs.dim() < 1 or not len(inputs):
            raise ConfigError("calibration needs batches of inputs: tensors, or tuples that begin with one")
        found = True
        yield inputs
    if not found:
        raise ConfigError("calibration needs at least one batch of inputs")


def _recorder(calls: list[tuple[float, float]], percentile: float | None) -> Any:
    def record(_: nn.Module, __: Any, output: Tensor) -> None:
        values = output.detach().float().flatten()
        if percentile is None:
            calls.append((float(values.min()), float(values.max())))
            return
        values = values[:: max(1, values.numel() // _SAMPLE)]
        cut = (1 - percentile / 100) / 2
        low, high = torch.quantile(values, torch.tensor([cut, 1 - cut], device=values.device)).tolist()
        calls.append((low, high))

    return record


def _joined(calls: list[tuple[float, float]], percentile: float | None) -> tuple[float, float]:
    if percentile is None:
        return min(low for low, _ in calls), max(high for _, high in calls)
    return sum(low for low, _ in calls) / len(calls), sum(high for _, high in calls) / len(calls)


def quantize_int8(source: str, target: str, batches: Iterable[Any], percentile: float | None) -> None:
    """An ONNX file as int8: weights by channel, activations by the ranges that the batches give, as QDQ pairs.

    Weights that lie on a grid of 8 bits or fewer keep their values, but for the norms that are folded into them.
    """
    check_percentile(percentile)
    try:
        import onnx
        from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
        from onnxruntime.quantization.shape_inference import quant_pre_process
    except ImportError as error:
        raise MissingExtraError(
            f"int8 export needs onnxruntime.quantization ({error}): pip install 'paretorch[export]'"
        ) from error
    ways = CalibrationMethod.MinMax if percentile is None else CalibrationMethod.Percentile
    options: dict[str, Any] = {} if percentile is None else {"CalibPercentile": percentile}
    handle, folded = tempfile.mkstemp(suffix=".onnx", dir=os.path.dirname(target) or ".")
    os.close(handle)
    try:
        with _quiet():
            # Norms go into the convolutions before them, so that both are one integer operation.
            quant_pre_process(source, folded, skip_symbolic_shape=True)
            options["TensorQuantOverrides"] = overrides(onnx.load(folded))
            reader = _Reader(inputs_of(batches))
            if percentile is not None and reader.sort() > 1:
                options["CalibStridedMinMax"] = 1
            quantize_static(
                folded,
                target,
                reader,
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                calibrate_method=ways,
                extra_options=options,
            )
    except PareError:
        raise
    except Exception as error:  # onnxruntime raises types of its own
        raise ConfigError(f"onnxruntime cannot calibrate with these batches: {str(error).splitlines()[0]}") from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(folded)


class _Reader:
    """Hands batches to onnxruntime, one at a time.

    A percentile is told by histograms of batches of one shape at a time: once they are sorted, `set_range` says by which.
    """

    def __init__(self, batches: Iterator[Tensor]) -> None:
        self._batches = batches
        self._kinds: list[list[Tensor]] = []

    def sort(self) -> int:
        """Take all batches, by their shapes; returns how many these are."""
        kinds: dict[torch.Size, list[Tensor]] = {}
        for batch in self._batches:
            kinds.setdefault(batch.shape, []).append(batch)
        self._kinds = list(kinds.values())
        self._batches = iter(self._kinds[0])
        return len(self)

    def __len__(self) -> int:
        return len(self._kinds)

    def set_range(self, start_index: int, end_index: int) -> None:
        self._batches = iter([batch for kind in self._kinds[start_index:end_index] for batch in kind])

    def get_next(self) -> dict[str, np.ndarray[Any, Any]] | None:
        batch = next(self._batches, None)
        return None if batch is None else {"input": batch.detach().cpu().numpy()}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)  # onnxruntime's advice is given through the root logger, and by printing
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        root.setLevel(level)
