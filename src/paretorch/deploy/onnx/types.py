"""Small integers in ONNX: INT2, INT4 and INT8, and widths between and above them as two tensors, c = 2^k · high + low.

6 bits are INT4 and UINT2, 10 are INT8 and UINT2, 12 are INT8 and UINT4, 16 are INT8 and UINT8: an odd code of 4 or 5 bits
takes 6 instead of 8, and one of 8 to 15 bits is still no float. Where all codes are odd (equal precisions, no zeros) their
lowest bit is not stored, c = 2a + 1: then p bits are p bits. All of it is undone once, when the file is loaded.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paretorch.deploy.codec.grids import WIDTHS, Codes, are_odd, width_of
from paretorch.deploy.onnx.graph import OPSET, Graph, Model

CODES, LOW = ".codes", ".low"  # behind the name of a weight
_PLANES = {6: (4, 2), 10: (8, 2), 12: (8, 4), 16: (8, 8)}  # bits -> those of the signed and of the unsigned tensor
_OPSETS = {2: 25, 4: 21, 8: OPSET}  # bits -> the first to have such integers
_NODE = 80  # bytes that a node takes with its names, about


def planes(width: int) -> tuple[int, ...]:
    """The bits of the tensors that hold codes of this width."""
    return _PLANES.get(width, (width,))


def opset_of(width: int) -> int:
    """The first opset that has integers for this width."""
    return max(_OPSETS[bits] for bits in planes(width))


class Layout(NamedTuple):
    """How codes are stored: in how many bits, and whether without a lowest bit that is always 1."""

    bits: int
    odd: bool


def choose_layout(codes: Codes, form: str, opset: int | None = None) -> Layout | None:
    """The layout of the fewest bytes that holds the codes and that onnxruntime runs, up to this opset."""
    least = {False: width_of(codes)}
    if form != "qdq" and are_odd(codes):
        least[True] = width_of(codes >> 1)
    fits = [
        Layout(width, odd)
        for odd, bits in least.items()
        for width in WIDTHS
        if width >= bits and (opset is None or opset_of(width) <= opset) and runs(width, form)
    ]
    return min(fits, key=lambda one: one.bits * codes.size // 8 + _NODE * _nodes(one), default=None)


def _nodes(layout: Layout) -> int:
    return 1 + 3 * (len(planes(layout.bits)) - 1) + 2 * layout.odd


def store(graph: Graph, name: str, codes: Codes, layout: Layout, kind: str | None) -> tuple[list[Any], str]:
    """Add the integers; gives the nodes that turn them into one tensor of that type, and its name (None: as they are)."""
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
    """A constant, once."""
    from onnx import numpy_helper

    name = f"number_{value}"
    if all(tensor.name != name for tensor in graph.initializer):
        graph.initializer.append(numpy_helper.from_array(np.array(value, dtype=np.float32), name))
    return name


def put_first(graph: Graph, made: Sequence[Any]) -> None:
    """Add nodes that read constants alone before those that are there."""
    nodes = list(graph.node)
    del graph.node[:]
    graph.node.extend([*made, *nodes])


def finished(model: Model) -> Model:
    """The model with the lowest version of the format that its operators need."""
    from onnx import helper

    model.ir_version = helper.find_min_ir_version_for(list(model.opset_import), ignore_unknown=True)
    return model


@functools.cache
def runs(width: int, form: str) -> bool:
    """Whether onnx and onnxruntime, as installed here, know integers of this width, to be used in this form."""
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
    except Exception:  # onnxruntime raises types of its own
        return False


def _tensor(name: str, codes: NDArray[Any], kind: str, width: int) -> Any:
    """Integers of 2, 4 or 8 bits: several to a byte, the first in its lowest bits."""
    from onnx import TensorProto

    each = 8 // width
    flat = np.zeros(-(-codes.size // each) * each, dtype=np.uint8)
    flat[: codes.size] = codes.reshape(-1).astype(np.int64) & (2**width - 1)
    octets = np.bitwise_or.reduce(flat.reshape(-1, each) << (width * np.arange(each, dtype=np.uint8)), axis=1)
    number = TensorProto.DataType.Value(f"{kind}{width}")
    return TensorProto(name=name, data_type=number, dims=codes.shape, raw_data=octets.astype(np.uint8).tobytes())
