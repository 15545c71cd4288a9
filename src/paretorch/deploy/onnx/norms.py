"""A batch norm behind a packed weight, multiplied into its steps: γ(c·s ∗ x + b − μ)/√(σ² + ε) + β, codes untouched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paretorch.deploy.codec.grids import Grid
from paretorch.deploy.onnx.graph import Graph


def absorb_norm(graph: Graph, node: Any, grid: Grid, positive: bool) -> Grid | None:
    """Take the norm behind the node out of the graph; returns the grid with its steps. None: there is none to take.

    positive: only if all steps stay above 0, which compilers ask of scales.
    """
    from onnx import numpy_helper

    norm = _norm_behind(graph, node)
    axis = output_axis(node)
    constants = {tensor.name: tensor for tensor in graph.initializer}
    if norm is None or axis is None or grid.axis not in (None, axis):
        return None
    names = [*norm.input[1:5], *node.input[2:3]]
    if any(name and name not in constants for name in names):
        return None
    gamma, beta, mean, variance, *bias = (numpy_helper.to_array(constants[name]).astype(np.float64) for name in names)
    factor = gamma / np.sqrt(variance + _attribute(norm, "epsilon", 1e-5))
    steps = (grid.steps * factor).astype(np.float32)
    moved = ((bias[0] if bias else 0.0) - mean) * factor + beta
    if steps.shape != (grid.codes.shape[axis],) or not np.isfinite(steps).all() or (positive and steps.min() <= 0):
        return None
    graph.initializer.append(_tensor(f"{norm.output[0]}.bias", moved.astype(np.float32)))
    del node.input[2:]
    node.input.append(f"{norm.output[0]}.bias")
    node.output[0] = norm.output[0]
    graph.node.remove(norm)
    return replace(grid, steps=steps, axis=axis)


def _tensor(name: str, values: NDArray[np.float32]) -> Any:
    from onnx import numpy_helper

    return numpy_helper.from_array(values, name)


def _norm_behind(graph: Graph, node: Any) -> Any:
    """The norm that alone reads what the node gives."""
    output = node.output[0]
    readers = [other for other in graph.node if output in other.input]
    if len(readers) != 1 or any(value.name == output for value in graph.output):
        return None
    norm = readers[0]
    plain = norm.op_type == "BatchNormalization" and not _attribute(norm, "training_mode", 0)
    return norm if plain and norm.input[0] == output and len(norm.output) == 1 else None


def output_axis(node: Any) -> int | None:
    """The dimension of the weight that is the channels of the output."""
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        return 1 if _attribute(node, "group", 1) == 1 else None
    plain = _attribute(node, "alpha", 1.0) == 1.0 and _attribute(node, "beta", 1.0) == 1.0
    return 0 if node.op_type == "Gemm" and plain and _attribute(node, "transB", 0) else None


def _attribute(node: Any, name: str, otherwise: float) -> float:
    from onnx import helper

    for attribute in node.attribute:
        if attribute.name == name:
            return float(helper.get_attribute_value(attribute))
    return otherwise
