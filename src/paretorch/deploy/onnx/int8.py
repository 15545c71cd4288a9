"""Weights of an int8 network: one that lies on a grid keeps its values, any other has steps of max|w|/127 by channel.

Few codes are few bits: they are stored in 2, 4 or 6 where they fit, and cast to INT8 when onnxruntime loads the file,
before it looks for integer operations. A channel of zeros has a step like the others; by max|w| it would have none, and its
bias, which counts in steps of weight times input, would be rounded to nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paretorch.deploy.codec.grids import Codes, Floats, read_grid
from paretorch.deploy.onnx.graph import Model
from paretorch.deploy.onnx.norms import output_axis
from paretorch.deploy.onnx.types import choose_layout, put_first, store

SIGNS = ".signs"  # behind the name of a weight
_LARGEST = 127
_TIES = 1e-4


def weight_steps(values: NDArray[Any], axis: int) -> Floats:
    """One step a slice along the axis."""
    top = np.abs(values).max(axis=tuple(i for i in range(values.ndim) if i != axis), initial=0.0)
    grid = read_grid(values, (axis,), near=True)
    steps = top / _LARGEST if grid is None or grid.bits > 8 else grid.steps
    some = steps[top > 0]
    return np.where(top > 0, steps, np.median(some) if some.size else 1.0).astype(np.float32)


def overrides(model: Model) -> dict[str, list[dict[str, Any]]]:
    """Weight -> what onnxruntime's quantizer is to do with each of its channels."""
    from onnx import numpy_helper

    constants = {t.name: t for t in model.graph.initializer if len(t.dims) > 1}
    found: dict[str, list[dict[str, Any]]] = {}
    for node in model.graph.node:
        name = node.input[1] if len(node.input) > 1 else ""
        if name not in constants or name in found:
            continue
        values = numpy_helper.to_array(constants[name])
        axis = 1 if node.op_type == "MatMul" else output_axis(node)
        # Several groups: the weight has the channels of one of them, the bias those of all. Several matrices: none has steps by channel.
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
    """Keep one of the int8 weights that are equal up to the signs of their channels; returns the bytes saved.

    Layers folded into one differ by a factor and by their norms. Both are in the steps, but for their signs. A value half-way
    between two codes may have fallen to either: for a handful of those the weights are still one.
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
            if apart.max(initial=0) <= 1 and np.count_nonzero(apart) <= _TIES * codes.size:
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
    """Store int8 codes in fewer bits where they fit and the model's opset has such integers."""
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
