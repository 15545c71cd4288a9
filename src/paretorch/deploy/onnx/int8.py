"""ONNX files in int8, calibrated with batches of inputs (post-training quantization) by onnxruntime's quantizer.

A weight that lies on a grid keeps its values; any other has steps of max|w|/127 per channel. Small codes take few bits:
they are stored in 2, 4 or 6 if they fit, and cast to INT8 when onnxruntime loads the file, before it looks for integer
operations. A channel of zeros gets a step like the others: max|w| would give 0, and round its bias, which is counted in steps of
weight times input, to 0.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paretorch.deploy.calibrate import check_percentile
from paretorch.deploy.codec.grids import Codes, Floats
from paretorch.deploy.codec.multiples import fit_multiples
from paretorch.deploy.onnx.graph import Model, output_axis
from paretorch.deploy.onnx.pack import choose_layout, put_first, store
from paretorch.errors import ConfigError, MissingExtraError, PareError
from paretorch.support.processes import suppress_output

Feed = Mapping[str, Tensor]  # a batch: the inputs of the graph by name
SIGNS = ".signs"  # suffix of a weight's name
_LARGEST = 127
_MAX_TIES = 1e-4  # share of codes that may differ by rounding


def weight_steps(values: NDArray[Any], axis: int) -> Floats:
    """Return one step per slice along the axis."""
    top = np.abs(values).max(axis=tuple(i for i in range(values.ndim) if i != axis), initial=0.0)
    found = fit_multiples(np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1), enlarge=False)
    kept = found.fits & (found.codes.max(1, initial=0) <= _LARGEST) & (found.codes.min(1, initial=0) >= -_LARGEST - 1)
    steps = np.where(kept, found.steps, top / _LARGEST)
    some = steps[top > 0]
    return np.where(top > 0, steps, np.median(some) if some.size else 1.0).astype(np.float32)


def overrides(model: Model) -> dict[str, list[dict[str, Any]]]:
    """Return, by weight, the scale and zero point of each channel, for onnxruntime's quantizer."""
    from onnx import numpy_helper

    constants = {t.name: t for t in model.graph.initializer if len(t.dims) > 1}
    found: dict[str, list[dict[str, Any]]] = {}
    for node in model.graph.node:
        name = node.input[1] if len(node.input) > 1 else ""
        if name not in constants or name in found:
            continue
        values = numpy_helper.to_array(constants[name])
        axis = 1 if node.op_type == "MatMul" else output_axis(node)
        # With several groups the weight has the channels of one group, the bias those of all. Stacked matrices have no steps per channel.
        spread = node.op_type == "ConvTranspose" and axis is None and len(node.input) > 2
        if values.dtype != np.float32:
            continue
        if spread or (node.op_type == "MatMul" and values.ndim > 2):
            found[name] = [{"scale": weight_steps(values.reshape(1, -1), 0)[0], "zero_point": 0}]
        elif axis is not None:
            steps = weight_steps(values, axis)
            found[name] = [{"axis": axis, "scale": step, "zero_point": 0} for step in steps]
    return found


def share_codes(model: Model) -> int:
    """Keep one of the int8 weights that are equal up to the signs of their channels; return the bytes saved.

    Layers folded into one differ by a factor and by their norms. Both are in the steps, except for their signs. A value
    halfway between two codes may have been rounded to either, so a few codes may differ by one.
    """
    from onnx import TensorProto, helper, numpy_helper

    graph = model.graph
    first: dict[tuple[int, ...], list[tuple[str, Codes]]] = {}
    made: list[Any] = []
    saved = 0
    for tensor in [t for t in graph.initializer if t.data_type == TensorProto.INT8 and len(t.dims) > 1]:
        codes = numpy_helper.to_array(tensor)
        rows = codes.reshape(len(codes), -1)
        for name, known in first.setdefault(codes.shape, []):
            signs = np.where((rows.astype(np.int32) * known).sum(1) < 0, -1, 1)
            apart = np.abs(signs[:, None] * known - rows)
            if apart.max(initial=0) <= 1 and np.count_nonzero(apart) <= _MAX_TIES * codes.size:
                graph.initializer.remove(tensor)
                spread = signs.astype(np.float32).reshape(-1, *(1,) * (codes.ndim - 1))
                graph.initializer.append(numpy_helper.from_array(spread, tensor.name + SIGNS))
                made += [
                    helper.make_node("Cast", [name], [f"{tensor.name}.whole"], to=TensorProto.FLOAT),
                    helper.make_node("Mul", [f"{tensor.name}.whole", tensor.name + SIGNS], [f"{tensor.name}.signed"]),
                    helper.make_node("Cast", [f"{tensor.name}.signed"], [tensor.name], to=TensorProto.INT8),
                ]
                saved += codes.size
                break
        else:
            first[codes.shape].append((tensor.name, rows))
    put_first(graph, made)
    return saved


def narrow(model: Model) -> None:
    """Store int8 codes in fewer bits if they fit and the model's opset has such integers."""
    from onnx import TensorProto, numpy_helper

    graph = model.graph
    opset = next(entry.version for entry in model.opset_import if not entry.domain)
    read = {node.input[0] for node in graph.node if node.op_type == "DequantizeLinear"}
    made: list[Any] = []
    for tensor in [t for t in graph.initializer if t.name in read and t.data_type == TensorProto.INT8]:
        codes = numpy_helper.to_array(tensor)
        layout = choose_layout(codes, "int8", opset)
        if codes.ndim > 1 and layout is not None and layout.bits < 8:
            graph.initializer.remove(tensor)
            nodes, _ = store(graph, tensor.name, codes, layout, "INT8")
            nodes[-1].output[0] = tensor.name
            made += nodes
    put_first(graph, made)


def quantize_int8(source: str, target: str, batches: Iterable[Feed], percentile: float | None) -> None:
    """Write an ONNX file as int8: weights per channel, activations by the ranges that the batches give, as QDQ pairs.

    Weights that lie on a grid of 8 bits or fewer keep their values, apart from the norms that are folded into them.
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
    method = CalibrationMethod.MinMax if percentile is None else CalibrationMethod.Percentile
    options: dict[str, Any] = {} if percentile is None else {"CalibPercentile": percentile}
    handle, folded = tempfile.mkstemp(suffix=".onnx", dir=os.path.dirname(target) or ".")
    os.close(handle)
    try:
        with suppress_output():
            # Folds norms into the convolutions before them, so that both are one integer operation.
            quant_pre_process(source, folded, skip_symbolic_shape=True)
            options["TensorQuantOverrides"] = overrides(onnx.load(folded))
            reader = _BatchReader(iter(batches))
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
                calibrate_method=method,
                extra_options=options,
            )
    except PareError:
        raise
    except Exception as error:  # onnxruntime raises errors of its own types
        raise ConfigError(f"onnxruntime cannot calibrate with these batches: {str(error).splitlines()[0]}") from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(folded)


class _BatchReader:
    """Passes batches to onnxruntime, one at a time.

    A percentile is computed from histograms of batches of one shape at a time: `sort` groups them, `set_range` selects.
    """

    def __init__(self, batches: Iterator[Feed]) -> None:
        self._batches = batches
        self._kinds: list[list[Feed]] = []

    def sort(self) -> int:
        """Group all batches by shape; return the number of shapes."""
        kinds: dict[tuple[torch.Size, ...], list[Feed]] = {}
        for batch in self._batches:
            kinds.setdefault(tuple(tensor.shape for tensor in batch.values()), []).append(batch)
        self._kinds = list(kinds.values())
        self._batches = iter(self._kinds[0])
        return len(self)

    def __len__(self) -> int:
        return len(self._kinds)

    def set_range(self, start_index: int, end_index: int) -> None:
        self._batches = iter([batch for kind in self._kinds[start_index:end_index] for batch in kind])

    def get_next(self) -> dict[str, np.ndarray[Any, Any]] | None:
        batch = next(self._batches, None)
        return None if batch is None else {name: tensor.detach().cpu().numpy() for name, tensor in batch.items()}
