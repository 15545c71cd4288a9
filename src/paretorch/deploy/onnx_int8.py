"""Weights of an int8 network: one that lies on a grid keeps its values, any other has steps of max|w|/127 by channel.

Few codes are few bits: they are stored as INT2 or INT4 where they fit, and cast to INT8 when onnxruntime loads the file,
before it looks for integer operations. A channel of zeros has a step like the others; by max|w| it would have none, and its
bias, which counts in steps of weight times input, would be rounded to nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paretorch.deploy.onnx_graph import Model
from paretorch.deploy.onnx_grid import WIDTHS, Floats, read_grid, width_of
from paretorch.deploy.onnx_norms import output_axis
from paretorch.deploy.onnx_pack import CODES, OPSETS, integers, put_first, runs

_LARGEST = 127


def weight_steps(values: NDArray[Any], axis: int) -> Floats:
    """One step a slice along the axis."""
    top = np.abs(values).max(axis=tuple(i for i in range(values.ndim) if i != axis), initial=0.0)
    grid = read_grid(values, (axis,), near=True)
    steps = top / _LARGEST if grid is None else grid.steps
    some = steps[top > 0]
    return np.where(top > 0, steps, np.median(some) if some.size else 1.0).astype(np.float32)


def overrides(model: Model) -> dict[str, list[dict[str, Any]]]:
    """Weight -> what onnxruntime's quantizer is to do with each of its channels."""
    from onnx import numpy_helper

    constants = {t.name: t for t in model.graph.initializer if len(t.dims) > 1}
    found: dict[str, list[dict[str, Any]]] = {}
    for node in model.graph.node:
        name = node.input[1] if len(node.input) > 1 else ""
        axis = 1 if node.op_type == "MatMul" else output_axis(node)
        if axis is None or name not in constants or name in found:
            continue
        values = numpy_helper.to_array(constants[name])
        if values.dtype == np.float32:
            steps = weight_steps(values, axis)
            found[name] = [{"axis": axis, "scale": step, "zero_point": 0} for step in steps]
    return found


def narrow(model: Model) -> None:
    """Store int8 codes in fewer bits where they fit and the model's opset has such integers."""
    from onnx import TensorProto, helper, numpy_helper

    graph = model.graph
    opset = next(entry.version for entry in model.opset_import if not entry.domain)
    read = {node.input[0] for node in graph.node if node.op_type == "DequantizeLinear"}
    made = []
    for tensor in [t for t in graph.initializer if t.name in read and t.data_type == TensorProto.INT8]:
        codes = numpy_helper.to_array(tensor)
        width = next((w for w in WIDTHS if w >= width_of(codes) and OPSETS[w] <= opset and runs(w, "int8")), 8)
        if codes.ndim > 1 and width < 8:
            graph.initializer.remove(tensor)
            graph.initializer.append(integers(tensor.name + CODES, codes, width))
            made.append(helper.make_node("Cast", [tensor.name + CODES], [tensor.name], to=TensorProto.INT8))
    put_first(graph, made)
