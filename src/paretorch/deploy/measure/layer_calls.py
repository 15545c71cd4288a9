"""One layer by itself, with fewer rows or columns than it has: what a runtime is timed on for a latency budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

Call = Callable[[], object]


@dataclass(frozen=True)
class LayerShape:
    """A convolution or linear layer at one size; layers that are alike here take the same time.

    Args:
        weight: The shape of the weight.
        inputs: The shape of the inputs.
        groups: 0 for a linear layer.
    """

    weight: tuple[int, ...]
    inputs: tuple[int, ...]
    groups: int = 0
    transposed: bool = False
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    output_padding: tuple[int, ...] = ()

    @classmethod
    def of(cls, module: nn.Module, inputs: Sequence[int]) -> Self:
        """Return the shape of a whole layer."""
        weight: Any = module.weight
        if not isinstance(module, _ConvNd):
            return cls(tuple(weight.shape), tuple(inputs))
        sides = module._reversed_padding_repeated_twice  # also of padding="same"
        return cls(
            tuple(weight.shape),
            tuple(inputs) if len(inputs) == weight.dim() else (1, *inputs),
            module.groups,
            isinstance(module, _ConvTransposeNd),
            tuple(module.stride),
            tuple(int(one) for one in sides[::2][::-1]),
            tuple(module.dilation),
            tuple(module.output_padding),
        )

    def cut(self, rows: int, columns: int) -> LayerShape:
        """Return the layer with so many rows and columns, or a few more if its groups need that."""
        axis = int(self.transposed)
        is_depthwise = self.groups > 1 and not self.transposed and self.weight[1] == 1
        groups = self.groups
        if is_depthwise:
            each = self.weight[0] // self.groups
            groups = max(1, -(-rows // each))
            rows = groups * each
        elif groups > 1 and self.transposed:
            columns = -(-columns // groups) * groups
        elif groups > 1:
            rows = -(-rows // groups) * groups
        shape = list(self.weight)
        shape[axis], shape[1 - axis] = rows, columns
        inputs = list(self.inputs)
        inputs[-1 if groups == 0 else 1] = shape[1 - axis] if self.transposed else shape[1] * max(groups, 1)
        return LayerShape(
            tuple(shape), tuple(inputs), groups, self.transposed, self.stride, self.padding, self.dilation, self.output_padding
        )  # fmt: skip

    def numbers(self) -> tuple[Tensor, Tensor]:
        """Return inputs and a weight; times do not depend on them."""
        generator = torch.Generator().manual_seed(0)
        inputs, weight = (torch.randn(shape, generator=generator) for shape in (self.inputs, self.weight))
        return inputs, 0.1 * weight


def torch_layer(shape: LayerShape) -> Call:
    """Return a call of the layer in torch."""
    inputs, weight = shape.numbers()
    if shape.groups == 0:
        return lambda: nn.functional.linear(inputs, weight)
    dims = len(shape.weight) - 2
    name = f"conv_transpose{dims}d" if shape.transposed else f"conv{dims}d"
    run: Callable[..., Tensor] = getattr(nn.functional, name)
    options: dict[str, Any] = {"stride": shape.stride, "padding": shape.padding, "dilation": shape.dilation}
    options |= {"output_padding": shape.output_padding} if shape.transposed else {}
    return lambda: run(inputs, weight, groups=shape.groups, **options)


def onnxruntime_layer(shape: LayerShape, threads: int) -> Call:
    """Return a call of the layer in onnxruntime, built without torch's exporter."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    inputs, weight = (one.numpy() for one in shape.numbers())
    attributes: dict[str, Any] = {}
    if shape.groups:
        attributes = {"group": shape.groups, "strides": shape.stride, "dilations": shape.dilation}
        attributes |= {"pads": (*shape.padding, *shape.padding)}
        attributes |= {"output_padding": shape.output_padding} if shape.transposed else {}
    else:
        weight = np.ascontiguousarray(weight.T)
    kind = "MatMul" if not shape.groups else "ConvTranspose" if shape.transposed else "Conv"
    graph = helper.make_graph(
        [helper.make_node(kind, ["x", "w"], ["y"], **attributes)],
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, inputs.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"x": inputs})
