"""Weights with a step per block of inputs in an ONNX graph, as runtimes compute with them.

matmulnbits   MatMulNBits for products and GatherBlockQuantized for embeddings, onnxruntime's own: weights stay packed in memory. An
              embedding and a head that are tied read one tensor.
dequantize    DequantizeLinear with blocks, of opset 21, which OpenVINO turns into products with packed weights.

Any other use of such a weight reads DequantizeLinear. Weights in fp16 are cast when the file is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paretorch.core.attach.sites import is_conv1d
from paretorch.deploy.onnx.graph import Graph, Model, readers
from paretorch.deploy.onnx.pack import CODES, STEPS, integers, put_first
from paretorch.deploy.runtimes.read import Stored

MATMULNBITS, DEQUANTIZE = "matmulnbits", "dequantize"
MICROSOFT = "com.microsoft"
OPSET = 21  # the first with INT4 and with blocks in DequantizeLinear
_OWN = ("MatMul", "Gemm")


def is_blocked(one: Stored) -> bool:
    """Whether a weight has several steps per output."""
    return one.form is not None and one.form.block > 0


def is_half(one: Stored) -> bool:
    """Whether a weight is stored in fp16."""
    return one.form is not None and one.form.is_half


def store_halves(model: Model, names: Mapping[str, Stored]) -> None:
    """Store these weights in fp16, each followed by a Cast."""
    from onnx import TensorProto, helper, numpy_helper

    graph, made = model.graph, []
    for tensor in [t for t in graph.initializer if t.name in names and t.data_type == TensorProto.FLOAT]:
        values = numpy_helper.to_array(tensor).astype(np.float16)
        graph.initializer.remove(tensor)
        graph.initializer.append(numpy_helper.from_array(values, f"{tensor.name}.half"))
        made.append(helper.make_node("Cast", [f"{tensor.name}.half"], [tensor.name], to=TensorProto.FLOAT))
    put_first(graph, made)


def store_blocks(model: Model, names: Mapping[str, Stored], form: str) -> None:
    """Replace weights with blocks by their codes and steps.

    Args:
        names: By initializer of the graph.
        form: `MATMULNBITS` or `DEQUANTIZE`.
    """
    graph = model.graph
    for tensor in [tensor for tensor in graph.initializer if tensor.name in names]:
        graph.initializer.remove(tensor)
        _Block(graph, tensor.name, names[tensor.name]).replace(form)
    if any(node.domain == MICROSOFT for node in graph.node) and all(
        entry.domain != MICROSOFT for entry in model.opset_import
    ):
        from onnx import helper

        model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))


class _Block:
    """One weight of a graph, and the nodes that read it."""

    def __init__(self, graph: Graph, name: str, stored: Stored) -> None:
        assert stored.form is not None
        self._graph, self._name, self._stored, self._form = graph, name, stored, stored.form
        self._transposed = is_conv1d(stored.site.owners[0][0])
        self._rows, groups, block = stored.codes.shape
        self._inputs = groups * block
        self._added: set[str] = set()

    def replace(self, form: str) -> None:
        for node in readers(self._graph, self._name):
            if form == MATMULNBITS and self._replace_product(node):
                continue
            if form == MATMULNBITS and node.op_type == "Transpose" and not self._transposed:
                products = readers(self._graph, node.output[0])
                if products and all(self._replace_product(one, node.output[0]) for one in products):
                    self._graph.node.remove(node)
                    continue
            if form == MATMULNBITS and self._replace_gather(node):
                continue
            self._add_dequantized()

    def _replace_product(self, node: Any, name: str | None = None) -> bool:
        """Put MatMulNBits in the place of a product with this weight on its right."""
        from onnx import helper

        weight = self._name if name is None else name
        if node.op_type not in _OWN or len(node.input) < 2 or node.input[1] != weight or node.input[0] == weight:
            return False
        if node.op_type == "MatMul" and (name is None) != self._transposed:
            return False
        if node.op_type == "Gemm" and (not _is_plain(node) or self._transposed == _flag(node, "transB")):
            return False
        codes, steps = self._add_bytes()
        bias = [*node.input[2:3]]
        inputs = [node.input[0], codes, steps, *(["", "", *bias] if bias and bias[0] else [])]
        attributes: dict[str, Any] = {
            "K": self._inputs,
            "N": self._rows,
            "bits": self._form.bits,
            "block_size": self._form.block,
        }
        made = helper.make_node("MatMulNBits", inputs, list(node.output), domain=MICROSOFT, **attributes)
        self._put(node, made)
        return True

    def _replace_gather(self, node: Any) -> bool:
        """Put GatherBlockQuantized in the place of an embedding of this weight."""
        from onnx import helper

        if node.op_type != "Gather" or node.input[0] != self._name or self._transposed or self._form.bits < 4:
            return False
        if _number(node, "axis") != 0:
            return False
        codes, steps = self._add_bytes()
        flat = f"{self._name}.rows"
        if flat not in self._added:
            self._add(np.array([self._rows, -1], dtype=np.int64), f"{flat}.shape")
            put_first(self._graph, [helper.make_node("Reshape", [codes, f"{flat}.shape"], [flat])])
            self._added.add(flat)
        attributes: dict[str, Any] = {
            "gather_axis": 0,
            "quantize_axis": 1,
            "bits": self._form.bits,
            "block_size": self._form.block,
        }
        inputs = [flat, node.input[1], steps]
        self._put(
            node, helper.make_node("GatherBlockQuantized", inputs, list(node.output), domain=MICROSOFT, **attributes)
        )
        return True

    def _put(self, old: Any, new: Any) -> None:
        nodes = [new if node is old or node == old else node for node in self._graph.node]
        del self._graph.node[:]
        self._graph.node.extend(nodes)

    def _add_bytes(self) -> tuple[str, str]:
        """Add codes as bytes, counted from 0, and steps; return their names, of which the first ends with the format's."""
        codes, steps = f"{self._name}.{self._form.name}", self._name + STEPS
        if codes not in self._added:
            shifted = (self._stored.codes + (1 << (self._form.bits - 1))).astype(np.uint8)
            self._add(_packed(shifted, self._form.bits), codes)
            self._added.add(codes)
        self._add_steps(self._stored.steps, steps)
        return codes, steps

    def _add_steps(self, values: NDArray[Any], name: str) -> None:
        if name not in self._added:
            self._add(values, name)
            self._added.add(name)

    def _add(self, values: NDArray[Any], name: str) -> None:
        from onnx import numpy_helper

        self._graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(values), name))

    def _add_dequantized(self) -> None:
        """Let the weight be computed by DequantizeLinear, in its own shape."""
        from onnx import helper

        if self._name in self._added:
            return
        self._added.add(self._name)
        codes, steps = self._stored.codes.reshape(self._rows, -1), self._stored.steps
        axis = 1
        if self._transposed:
            codes, steps, axis = codes.T, steps.T, 0
        # 2 bits are stored as 4 here: INT2 is of opset 25, which few runtimes read.
        width = max(self._form.bits, 4)
        self._graph.initializer.append(integers(self._name + CODES, np.ascontiguousarray(codes), width))
        self._add_steps(steps, f"{self._name}.block{STEPS}")
        node = helper.make_node(
            "DequantizeLinear",
            [self._name + CODES, f"{self._name}.block{STEPS}"],
            [self._name],
            axis=axis,
            block_size=self._form.block,
        )
        put_first(self._graph, [node])


def _packed(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Several codes per byte along the last axis, the first in the lowest bits."""
    each = 8 // bits
    parts = codes.reshape(*codes.shape[:-1], -1, each)
    shifts = (bits * np.arange(each)).astype(np.uint8)
    return np.asarray(np.bitwise_or.reduce(parts << shifts, axis=-1), dtype=np.uint8)


def _is_plain(node: Any) -> bool:
    return _number(node, "alpha", 1.0) == 1.0 and _number(node, "beta", 1.0) == 1.0 and not _flag(node, "transA")


def _flag(node: Any, name: str) -> bool:
    return bool(_number(node, name))


def _number(node: Any, name: str, otherwise: float = 0.0) -> float:
    from onnx import helper

    found = [helper.get_attribute_value(one) for one in node.attribute if one.name == name]
    return float(found[0]) if found else otherwise
