"""Weights on a grid as small integers and steps in an ONNX graph: W = float(codes) · steps.

packed   Cast, then Mul. onnxruntime computes both once, when it loads the file: the network is as fast as the fp32 one.
qdq      DequantizeLinear, which compilers for other hardware look for. onnxruntime's CPU sessions do not fold it unless the
         session option session.disable_quant_qdq is "1"; without it every call unpacks every weight.

A batch norm after such a weight goes into its steps, so that codes stay codes. A weight in fp16 is the same product, followed
by another Cast, and its norm stays.

Integers are INT2, INT4 and INT8; widths between and above them are two tensors, c = 2^k · high + low. 6 bits are INT4 and
UINT2, 10 are INT8 and UINT2, 12 are INT8 and UINT4, 16 are INT8 and UINT8: an odd code of 4 or 5 bits takes 6 instead of 8,
and one of 8 to 15 bits is still smaller than a float. If all codes are odd (equal precisions, no zeros) their lowest bit is not stored,
c = 2a + 1, so that p bits take p bits. All of this is computed once, when the file is loaded.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from paretorch.deploy.codec.grids import WIDTHS, Codes, Grid, are_odd, cheapest, read_grid, read_rounded, width_of
from paretorch.deploy.onnx.graph import OPSET, Graph, Model, absorb_norm, readers

CODES, LOW = ".codes", ".low"  # suffixes of a weight's name
_PLANES = {6: (4, 2), 10: (8, 2), 12: (8, 4), 16: (8, 8)}  # bits -> those of the signed and of the unsigned tensor
_OPSETS = {2: 25, 4: 21, 8: OPSET}  # bits -> the first opset with such integers
_NODE_BYTES = 80  # of a node and its names, about


def planes(width: int) -> tuple[int, ...]:
    """Return the bits of each tensor that holds codes of this width."""
    return _PLANES.get(width, (width,))


def opset_of(width: int) -> int:
    """Return the first opset that has integers for this width."""
    return max(_OPSETS[bits] for bits in planes(width))


class Layout(NamedTuple):
    """How codes are stored: bits per code; odd: the lowest bit is always 1 and not stored."""

    bits: int
    odd: bool


def choose_layout(codes: Codes, form: str, opset: int | None = None) -> Layout | None:
    """Return the smallest layout that holds the codes and that onnxruntime runs, up to this opset; None if there is none."""
    least = {False: width_of(codes)}
    if form != "qdq" and are_odd(codes):
        least[True] = width_of(codes >> 1)
    fits = [
        Layout(width, odd)
        for odd, bits in least.items()
        for width in WIDTHS
        if width >= bits and (opset is None or opset_of(width) <= opset) and runs(width, form)
    ]
    return min(fits, key=lambda one: one.bits * codes.size // 8 + _NODE_BYTES * _nodes(one), default=None)


def _nodes(layout: Layout) -> int:
    return 1 + 3 * (len(planes(layout.bits)) - 1) + 2 * layout.odd


def store(graph: Graph, name: str, codes: Codes, layout: Layout, kind: str | None) -> tuple[list[Any], str]:
    """Add the integers; return the nodes that turn them into one tensor of type `kind`, and its name (None: as they are)."""
    from onnx import TensorProto, helper

    high, *low = planes(layout.bits)
    rest = codes >> layout.odd
    stored = name + CODES
    graph.initializer.append(_tensor(stored, rest >> sum(low), "INT", high))
    if kind is None:
        return [], stored
    nodes: list[Any] = []

    def then(operator: str, *inputs: str) -> str:
        nodes.append(helper.make_node(operator, list(inputs), [f"{stored}.{len(nodes)}"]))
        return f"{stored}.{len(nodes) - 1}"

    def cast(value: str, to: str) -> str:
        nodes.append(helper.make_node("Cast", [value], [f"{stored}.{len(nodes)}"], to=TensorProto.DataType.Value(to)))
        return f"{stored}.{len(nodes) - 1}"

    direct = not low and not layout.odd
    value = cast(stored, kind if direct else "FLOAT")
    for bits in low:
        graph.initializer.append(_tensor(name + LOW, rest & (2**bits - 1), "UINT", bits))
        value = then("Add", then("Mul", value, _number(graph, 2**bits)), cast(name + LOW, "FLOAT"))
    if layout.odd:
        value = then("Add", then("Mul", value, _number(graph, 2)), _number(graph, 1))
    if kind == "INT8" and not direct:
        value = cast(value, kind)
    return nodes, value


def _number(graph: Graph, value: int) -> str:
    """Add a constant, once, and return its name."""
    from onnx import numpy_helper

    name = f"number_{value}"
    if all(tensor.name != name for tensor in graph.initializer):
        graph.initializer.append(numpy_helper.from_array(np.array(value, dtype=np.float32), name))
    return name


def put_first(graph: Graph, made: Sequence[Any]) -> None:
    """Add nodes that read only constants before all others."""
    nodes = list(graph.node)
    del graph.node[:]
    graph.node.extend([*made, *nodes])


def finished(model: Model) -> Model:
    """Set the lowest version of the format that the model's operators need."""
    from onnx import helper

    model.ir_version = helper.find_min_ir_version_for(list(model.opset_import), ignore_unknown=True)
    return model


@functools.cache
def runs(width: int, form: str) -> bool:
    """Return whether the installed onnx and onnxruntime support integers of this width, used in this form."""
    import onnxruntime
    from onnx import TensorProto, helper

    signed, *unsigned = planes(width)
    if (unsigned and form == "qdq") or (width > 8 and form == "int8"):
        return False  # one DequantizeLinear has one tensor of codes; int8 has no more than 8 bits
    if not all(hasattr(TensorProto, kind) for kind in (f"INT{signed}", *(f"UINT{bits}" for bits in unsigned))):
        return False
    codes: Codes = np.array([[-2, 1, 0], [1, -1, -2]], dtype=np.int16)
    graph = helper.make_graph([], "probe", [], [helper.make_tensor_value_info("output", TensorProto.FLOAT, [2, 3])])
    kind = {"packed": "FLOAT", "int8": "INT8"}.get(form)
    nodes, whole = store(graph, "weight", codes, Layout(width, False), kind)
    if form == "packed":
        nodes.append(helper.make_node("Identity", [whole], ["output"]))
    else:
        graph.initializer.append(helper.make_tensor("one", TensorProto.FLOAT, [], [1.0]))
        nodes.append(helper.make_node("DequantizeLinear", [whole, "one"], ["output"]))
    put_first(graph, nodes)
    model = finished(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset_of(width))]))
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        return np.array_equal(session.run(None, {})[0], codes)
    except Exception:  # onnxruntime raises errors of its own types
        return False


def integers(name: str, codes: NDArray[Any], width: int) -> Any:
    """Return signed integers of 2, 4 or 8 bits as a tensor."""
    return _tensor(name, codes, "INT", width)


def _tensor(name: str, codes: NDArray[Any], kind: str, width: int) -> Any:
    """Return integers of 2, 4 or 8 bits, several per byte, the first in the lowest bits."""
    from onnx import TensorProto

    each = 8 // width
    flat = np.zeros(-(-codes.size // each) * each, dtype=np.uint8)
    flat[: codes.size] = codes.reshape(-1).astype(np.int64) & (2**width - 1)
    octets = np.bitwise_or.reduce(flat.reshape(-1, each) << (width * np.arange(each, dtype=np.uint8)), axis=1)
    number = TensorProto.DataType.Value(f"{kind}{width}")
    return TensorProto(name=name, data_type=number, dims=codes.shape, raw_data=octets.astype(np.uint8).tobytes())


FORMS = ("packed", "qdq")
STEPS, WIDE = ".steps", ".wide"  # suffixes of a weight's name
_OVERHEAD = 256  # bytes of the nodes and names of a packed weight, about


@dataclass(frozen=True)
class Packing:
    """Which weights are packed, by name, and how."""

    grids: Mapping[str, Grid]
    layouts: Mapping[str, Layout]

    @property
    def opset(self) -> int:
        """The lowest opset that has all the types."""
        return max((opset_of(layout.bits) for layout in self.layouts.values()), default=OPSET)


def find_packing(weights: Mapping[str, NDArray[Any]], form: str, opset: int | None = None) -> Packing:
    """Return the weights that lie on a grid and take fewer bytes on it, in the smallest layout that onnxruntime runs, up to this opset."""
    grids: dict[str, Grid] = {}
    layouts: dict[str, Layout] = {}
    known: dict[Any, Grid | None] = {}
    for name, values in weights.items():
        if values.ndim < 2:
            continue
        place = values.ctypes.data, values.shape, values.strides  # tied weights are read once
        if place not in known:
            known[place] = _read(values)
        grid = known[place]
        if grid is None:
            continue
        layout = choose_layout(grid.codes, form, opset)
        if layout is not None and layout.bits * values.size // 8 + grid.steps.nbytes + _OVERHEAD < values.nbytes:
            grids[name], layouts[name] = grid, layout
    return Packing(grids, layouts)


def _read(values: NDArray[Any]) -> Grid | None:
    """Return the grid of a weight; one in fp16 may lie on a grid of fp32 numbers, or on one whose products were rounded."""
    if values.dtype != np.float16:
        return read_grid(values)
    wide = values.astype(np.float32)
    return cheapest([read_grid(wide), read_rounded(wide, torch.float16)])


def pack(model: Model, packing: Packing, form: str) -> None:
    """Replace the weights by codes and steps."""
    from onnx import TensorProto

    graph = model.graph
    made: list[Any] = []
    for tensor in [tensor for tensor in graph.initializer if tensor.name in packing.grids]:
        name = tensor.name
        grid = packing.grids[name]
        half = tensor.data_type == TensorProto.FLOAT16  # so is the norm after it, which cannot take steps in fp32
        graph.initializer.remove(tensor)
        own: dict[str, Grid] = {}
        for i, node in enumerate(readers(graph, name)):
            is_weight = list(node.input).index(name) == 1
            scaled = absorb_norm(graph, node, grid, positive=form == "qdq") if is_weight and not half else None
            if scaled is None:
                own[name] = grid
            else:
                own[f"{name}.{i}"] = scaled  # layers that share a weight have different norms
                node.input[1] = f"{name}.{i}"
        if not own:
            continue  # an unused parameter of the module
        nodes, whole = store(graph, name, grid.codes, packing.layouts[name], "FLOAT" if form == "packed" else None)
        made += [*nodes, *_products(graph, whole, own, form, half)]
    put_first(graph, made)


def _products(graph: Graph, codes: str, grids: Mapping[str, Grid], form: str, half: bool) -> list[Any]:
    """Return the nodes that compute the weights, all from the same codes."""
    from onnx import TensorProto, helper, numpy_helper

    nodes = []
    for output, grid in grids.items():
        steps = grid.spread if form == "packed" else grid.steps
        graph.initializer.append(numpy_helper.from_array(np.asarray(steps), output + STEPS))
        product = output + WIDE if half else output
        if form == "packed":
            nodes.append(helper.make_node("Mul", [codes, output + STEPS], [product]))
        else:
            axis = 1 if grid.axis is None else grid.axis  # 1 is the default, and has no meaning for one step
            nodes.append(helper.make_node("DequantizeLinear", [codes, output + STEPS], [product], axis=axis))
        if half:
            nodes.append(helper.make_node("Cast", [product], [output], to=TensorProto.FLOAT16))
    return nodes
