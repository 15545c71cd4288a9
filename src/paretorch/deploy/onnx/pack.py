"""Weights on a grid as small integers and steps in an ONNX graph: W = float(codes) · steps.

packed   Cast, then Mul. onnxruntime computes both once, when it loads the file: the network is as fast as the fp32 one.
qdq      DequantizeLinear, what compilers for other hardware look for. onnxruntime's CPU sessions do not fold it unless the
         session option session.disable_quant_qdq is "1"; without it every call unpacks every weight.

A batch norm behind such a weight goes into its steps, so that codes stay codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paretorch.deploy.grids import Grid, read_grid
from paretorch.deploy.onnx.graph import OPSET, Graph, Model, readers
from paretorch.deploy.onnx.norms import absorb_norm
from paretorch.deploy.onnx.types import Layout, choose_layout, opset_of, put_first, store

FORMS = ("packed", "qdq")
STEPS = ".steps"  # behind the name of a weight
_OVERHEAD = 256  # bytes that nodes and names of a packed weight take, about


@dataclass(frozen=True)
class Packing:
    """Which weights are packed, by name, and how."""

    grids: Mapping[str, Grid]
    layouts: Mapping[str, Layout]

    @property
    def opset(self) -> int:
        """The lowest that has all the types."""
        return max((opset_of(layout.bits) for layout in self.layouts.values()), default=OPSET)


def find_packing(weights: Mapping[str, NDArray[Any]], form: str) -> Packing:
    """The weights that have a grid and take fewer bytes by it, in the fewest bytes that onnxruntime runs here."""
    grids: dict[str, Grid] = {}
    layouts: dict[str, Layout] = {}
    known: dict[Any, Grid | None] = {}
    for name, values in weights.items():
        if values.ndim < 2:
            continue
        place = values.ctypes.data, values.shape, values.strides  # tied weights are looked at once
        if place not in known:
            known[place] = read_grid(values)
        grid = known[place]
        if grid is None:
            continue
        layout = choose_layout(grid.codes, form)
        if layout is not None and layout.bits * values.size // 8 + _OVERHEAD < values.nbytes:
            grids[name], layouts[name] = grid, layout
    return Packing(grids, layouts)


def pack(model: Model, packing: Packing, form: str) -> None:
    """Put codes and steps in the place of the weights."""
    graph = model.graph
    made: list[Any] = []
    for tensor in [tensor for tensor in graph.initializer if tensor.name in packing.grids]:
        name = tensor.name
        grid = packing.grids[name]
        graph.initializer.remove(tensor)
        own: dict[str, Grid] = {}
        for i, node in enumerate(readers(graph, name)):
            is_weight = list(node.input).index(name) == 1
            scaled = absorb_norm(graph, node, grid, positive=form == "qdq") if is_weight else None
            if scaled is None:
                own[name] = grid
            else:
                own[f"{name}.{i}"] = scaled  # layers that share a weight have norms of their own
                node.input[1] = f"{name}.{i}"
        if not own:
            continue  # a parameter that the module has and does not use
        nodes, whole = store(graph, name, grid.codes, packing.layouts[name], "FLOAT" if form == "packed" else None)
        made += [*nodes, *_products(graph, whole, own, form)]
    put_first(graph, made)


def _products(graph: Graph, codes: str, grids: Mapping[str, Grid], form: str) -> list[Any]:
    """The nodes that make the weights, all of the same codes."""
    from onnx import helper, numpy_helper

    nodes = []
    for output, grid in grids.items():
        steps = grid.spread if form == "packed" else grid.steps
        graph.initializer.append(numpy_helper.from_array(np.asarray(steps), output + STEPS))
        if form == "packed":
            nodes.append(helper.make_node("Mul", [codes, output + STEPS], [output]))
        else:
            axis = 1 if grid.axis is None else grid.axis  # 1 is the default, and means nothing for one step
            nodes.append(helper.make_node("DequantizeLinear", [codes, output + STEPS], [output], axis=axis))
    return nodes
