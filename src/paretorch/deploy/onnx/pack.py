"""Weights on a grid as small integers and steps in an ONNX graph: W = float(codes) · steps.

packed   Cast, then Mul. onnxruntime computes both once, when it loads the file: the network is as fast as the fp32 one.
qdq      DequantizeLinear, what compilers for other hardware look for. onnxruntime's CPU sessions do not fold it unless the
         session option session.disable_quant_qdq is "1"; without it every call unpacks every weight.

A batch norm behind such a weight goes into its steps, so that codes stay codes. A weight in fp16 is the same product, Cast once
more, and its norm stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paretorch.deploy.codec.grids import Grid, cheapest, read_grid, read_rounded
from paretorch.deploy.onnx.graph import OPSET, Graph, Model, readers
from paretorch.deploy.onnx.norms import absorb_norm
from paretorch.deploy.onnx.types import Layout, choose_layout, opset_of, put_first, store

FORMS = ("packed", "qdq")
STEPS, WIDE = ".steps", ".wide"  # behind the name of a weight
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
            known[place] = _read(values)
        grid = known[place]
        if grid is None:
            continue
        layout = choose_layout(grid.codes, form)
        if layout is not None and layout.bits * values.size // 8 + grid.steps.nbytes + _OVERHEAD < values.nbytes:
            grids[name], layouts[name] = grid, layout
    return Packing(grids, layouts)


def _read(values: NDArray[Any]) -> Grid | None:
    """The grid of a weight; one in fp16 may be on a grid of fp32 numbers, or on one whose products were rounded."""
    if values.dtype != np.float16:
        return read_grid(values)
    wide = values.astype(np.float32)
    return cheapest([read_grid(wide), read_rounded(wide, torch.float16)])


def pack(model: Model, packing: Packing, form: str) -> None:
    """Put codes and steps in the place of the weights."""
    from onnx import TensorProto

    graph = model.graph
    made: list[Any] = []
    for tensor in [tensor for tensor in graph.initializer if tensor.name in packing.grids]:
        name = tensor.name
        grid = packing.grids[name]
        half = tensor.data_type == TensorProto.FLOAT16  # as is the norm behind it, which takes no steps in fp32
        graph.initializer.remove(tensor)
        own: dict[str, Grid] = {}
        for i, node in enumerate(readers(graph, name)):
            is_weight = list(node.input).index(name) == 1
            scaled = absorb_norm(graph, node, grid, positive=form == "qdq") if is_weight and not half else None
            if scaled is None:
                own[name] = grid
            else:
                own[f"{name}.{i}"] = scaled  # layers that share a weight have norms of their own
                node.input[1] = f"{name}.{i}"
        if not own:
            continue  # a parameter that the module has and does not use
        nodes, whole = store(graph, name, grid.codes, packing.layouts[name], "FLOAT" if form == "packed" else None)
        made += [*nodes, *_products(graph, whole, own, form, half)]
    put_first(graph, made)


def _products(graph: Graph, codes: str, grids: Mapping[str, Grid], form: str, half: bool) -> list[Any]:
    """The nodes that make the weights, all of the same codes."""
    from onnx import TensorProto, helper, numpy_helper

    nodes = []
    for output, grid in grids.items():
        steps = grid.spread if form == "packed" else grid.steps
        graph.initializer.append(numpy_helper.from_array(np.asarray(steps), output + STEPS))
        product = output + WIDE if half else output
        if form == "packed":
            nodes.append(helper.make_node("Mul", [codes, output + STEPS], [product]))
        else:
            axis = 1 if grid.axis is None else grid.axis  # 1 is the default, and means nothing for one step
            nodes.append(helper.make_node("DequantizeLinear", [codes, output + STEPS], [product], axis=axis))
        if half:
            nodes.append(helper.make_node("Cast", [product], [output], to=TensorProto.FLOAT16))
    return nodes
