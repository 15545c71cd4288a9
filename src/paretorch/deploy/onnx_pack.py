"""Weights on a grid as INT2, INT4 or INT8 codes and steps in an ONNX graph: W = float(codes) · steps.

packed   Cast, then Mul. onnxruntime computes both once, when it loads the file: the network is as fast as the fp32 one.
qdq      DequantizeLinear, what compilers for other hardware look for. onnxruntime's CPU sessions do not fold it unless the
         session option session.disable_quant_qdq is "1"; without it every call unpacks every weight.

int8     Cast to INT8, then DequantizeLinear: for networks with int8 activations (see `onnx_int8`), where onnxruntime merges
         the second into integer operations.

A batch norm behind such a weight goes into its steps, so that codes stay codes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paretorch.deploy.onnx_graph import OPSET, Graph, Model
from paretorch.deploy.onnx_grid import WIDTHS, Codes, Grid, read_grid
from paretorch.deploy.onnx_norms import absorb_norm

FORMS = ("packed", "qdq")
CODES, STEPS, SIGNS = ".codes", ".steps", ".signs"  # behind the name of a weight
OPSETS = {2: 25, 4: 21, 8: OPSET}  # bits -> the first to have such integers
_OVERHEAD = 256  # bytes that nodes and names of a packed weight take, about


@dataclass(frozen=True)
class Packing:
    """Which weights are packed, by name, in integers of how many bits."""

    grids: Mapping[str, Grid]
    bits: Mapping[str, int]

    @property
    def opset(self) -> int:
        """The lowest that has all the types."""
        return max((OPSETS[width] for width in self.bits.values()), default=OPSET)


def find_packing(weights: Mapping[str, NDArray[Any]], form: str) -> Packing:
    """The weights that have a grid and take fewer bytes by it, in the narrowest type that onnxruntime runs here."""
    grids: dict[str, Grid] = {}
    bits: dict[str, int] = {}
    known: dict[Any, Grid | None] = {}
    for name, values in weights.items():
        if values.ndim < 2:
            continue
        place = values.ctypes.data, values.shape, values.strides  # tied weights are looked at once
        if place not in known:
            known[place] = read_grid(values)
        grid = known[place]
        if grid is None or grid.cost + _OVERHEAD >= values.nbytes:
            continue
        width = next((width for width in WIDTHS if width >= grid.bits and runs(width, form)), None)
        if width is not None:
            grids[name], bits[name] = grid, width
    return Packing(grids, bits)


def pack(model: Model, packing: Packing, form: str) -> None:
    """Put codes and steps in the place of the weights."""
    graph = model.graph
    made: list[Any] = []
    for tensor in [tensor for tensor in graph.initializer if tensor.name in packing.grids]:
        name = tensor.name
        grid = packing.grids[name]
        graph.initializer.remove(tensor)
        graph.initializer.append(integers(name + CODES, grid.codes, packing.bits[name]))
        own: dict[str, Grid] = {}
        for i, node in enumerate([node for node in graph.node if name in node.input]):
            scaled = absorb_norm(graph, node, grid) if list(node.input).index(name) == 1 else None
            if scaled is None:
                own[name] = grid
            else:
                own[f"{name}.{i}"] = scaled  # layers that share a weight have norms of their own
                node.input[1] = f"{name}.{i}"
        made += _products(graph, name, own, form)
    put_first(graph, made)


def put_first(graph: Graph, made: Sequence[Any]) -> None:
    """Add nodes that read constants alone before those that are there."""
    nodes = list(graph.node)
    del graph.node[:]
    graph.node.extend([*made, *nodes])


def _products(graph: Graph, name: str, grids: Mapping[str, Grid], form: str) -> list[Any]:
    """The nodes that make the weights, all of the same codes."""
    from onnx import TensorProto, helper, numpy_helper

    nodes, codes = [], name + CODES
    if form != "qdq":
        kind = TensorProto.FLOAT if form == "packed" else TensorProto.INT8
        nodes.append(helper.make_node("Cast", [codes], [f"{name}.whole"], to=kind))
        codes = f"{name}.whole"
    for output, grid in grids.items():
        steps = grid.spread if form == "packed" else grid.steps
        graph.initializer.append(numpy_helper.from_array(np.asarray(steps), output + STEPS))
        if form == "packed":
            nodes.append(helper.make_node("Mul", [codes, output + STEPS], [output]))
        else:
            axis = 1 if grid.axis is None else grid.axis  # 1 is the default, and means nothing for one step
            nodes.append(helper.make_node("DequantizeLinear", [codes, output + STEPS], [output], axis=axis))
    return nodes


def integers(name: str, codes: Codes, width: int) -> Any:
    """A tensor of INT2, INT4 or INT8: several to a byte, the first in its lowest bits."""
    from onnx import TensorProto

    each = 8 // width
    flat = np.zeros(-(-codes.size // each) * each, dtype=np.uint8)
    flat[: codes.size] = codes.reshape(-1).view(np.uint8) & (2**width - 1)
    octets = np.bitwise_or.reduce(flat.reshape(-1, each) << (width * np.arange(each, dtype=np.uint8)), axis=1)
    kind = getattr(TensorProto, f"INT{width}")
    return TensorProto(name=name, data_type=kind, dims=codes.shape, raw_data=octets.astype(np.uint8).tobytes())


@functools.cache
def runs(width: int, form: str) -> bool:
    """Whether onnx and onnxruntime, as installed here, know integers of this width."""
    import onnxruntime
    from onnx import TensorProto, helper

    if not hasattr(TensorProto, f"INT{width}"):
        return False
    codes: Codes = np.array([[-2, 1, 0], [1, -1, -2]], dtype=np.int8)
    grid = Grid(codes, np.array([0.5, 0.25], dtype=np.float32), 0, True)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["input", "weight"], ["output"])],
        "probe",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["rows", 2])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["rows", 3])],
        [integers("weight" + CODES, codes, width)],
    )
    put_first(graph, _products(graph, "weight", {"weight": grid}, form))
    model = finished(helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSETS[width])]))
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        (output,) = session.run(None, {"input": np.eye(2, dtype=np.float32)})
    except Exception:  # onnxruntime raises types of its own
        return False
    return np.array_equal(output, codes * grid.spread)


def finished(model: Model) -> Model:
    """The model with the lowest version of the format that its operators need."""
    from onnx import helper

    model.ir_version = helper.find_min_ir_version_for(list(model.opset_import), ignore_unknown=True)
    return model
