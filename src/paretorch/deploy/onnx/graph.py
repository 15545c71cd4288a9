"""The ONNX graph of a module: traced, optimized except for chosen weights, with equal weights and norms merged.

A batch norm after a packed weight is multiplied into its steps: γ(c·s ∗ x + b − μ)/√(σ² + ε) + β, codes untouched.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from paretorch.deploy.codec.grids import Grid
from paretorch.errors import ConfigError
from paretorch.support.inputs import ModelCall, TensorFunction
from paretorch.support.processes import suppress_output

OPSET = 20  # unless something needs a later one
BATCH, SEQUENCE = "batch", "sequence"
"""Names of dynamic dimensions."""
_SYMBOL = re.compile(r"[A-Za-z_]\w*")
_NO_COPY = ("Shape", "Size", "CastLike", "Slice", "Split")  # reads that do not copy a weight when they are folded
Graph = Any  # onnx.GraphProto and its parts have no static types
Model = Any


def dynamic_dims(call: ModelCall, sequence: bool) -> list[dict[int, str]]:
    """Return the names of the dynamic dimensions of each tensor of a call: the batch, and if asked for the length of sequences."""
    found = []
    for tensor in call.tensors:
        own = {0: BATCH} if call.has_batch(tensor) else {}
        found.append({**own, **({1: SEQUENCE} if sequence and call.has_sequence(tensor) else {})})
    return found


def trace(
    module: nn.Module,
    call: ModelCall,
    outputs: Sequence[str],
    inputs: Sequence[str],
    opset: int,
    dims: Sequence[Mapping[int, str]],
) -> Model:
    """Return the module as torch exports it, not optimized: parameters keep their names.

    Args:
        module: Takes one tensor, or is a `TensorFunction` that takes those of the call.
        outputs, inputs: Their names in the graph.
        dims: Names of the dynamic dimensions of each tensor of the call.
    """
    batch = torch.export.Dim(BATCH)
    free: Any = torch.export.Dim.AUTO
    shapes = tuple({i: batch if name == BATCH else free for i, name in own.items()} or None for own in dims)
    try:
        with suppress_output():
            program = torch.onnx.export(
                module,
                tuple(call.tensors),
                dynamo=True,
                dynamic_shapes=(shapes,) if isinstance(module, TensorFunction) else shapes,
                opset_version=opset,
                external_data=False,
                input_names=inputs,
                output_names=outputs,
                verbose=False,
                optimize=False,
            )
            assert program is not None
            graph = program.model_proto
    except Exception as error:  # the exporter raises its own types, on many layers
        raise ConfigError(f"{_name(module)} cannot be exported to ONNX: {_reason(error)}") from error
    _name_dims(graph.graph, dims, _name(module))
    return graph


def _name_dims(graph: Graph, dims: Sequence[Mapping[int, str]], name: str) -> None:
    """Name the dynamic dimensions of inputs and outputs; raises if one became a constant."""
    symbols: dict[str, str] = {}
    for value, own in zip(graph.input, dims, strict=False):
        for i, wanted in own.items():
            symbol = value.type.tensor_type.shape.dim[i].dim_param
            if not symbol and wanted == BATCH:
                raise ConfigError(
                    f"{name} cannot be exported to ONNX: its forward pass makes the batch size a constant; "
                    "write x.shape[0] in place of len(x) or int(x.shape[0])"
                )
            if not symbol:
                raise ConfigError(f"{name} makes the length of sequences a constant")
            symbols.setdefault(symbol, wanted)
    for value in (*graph.input, *graph.output):
        for one in value.type.tensor_type.shape.dim:
            if one.dim_param:
                named = _SYMBOL.sub(lambda found: symbols.get(found[0], found[0]), one.dim_param)
                one.dim_param = symbols.get(one.dim_param) or " + ".join(sorted(named.split(" + ")))


def _name(module: nn.Module) -> str:
    return type(module.model if isinstance(module, TensorFunction) else module).__name__


def _reason(error: BaseException) -> str:
    """Return the first line of the original error: the exporter wraps it in advice on how to report bugs."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def optimize(model: Model, kept: Collection[str]) -> Model:
    """Fold constants and merge norms, except into the weights to keep.

    While the optimizer works, those weights are inputs of the graph, and it does not fold inputs. What it would have done
    to them (a transpose, a factor, a norm), onnxruntime does when it loads the file.
    """
    import onnx
    import onnxscript.optimizer

    for tensor in model.graph.initializer:
        if tensor.name in kept:
            model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    with suppress_output():
        optimized = onnxscript.optimizer.optimize(model)
    real = [value for value in optimized.graph.input if value.name not in kept]
    del optimized.graph.input[:]
    optimized.graph.input.extend(real)
    for part in _graphs(optimized.graph):
        for node in part.node:  # the Python source of each operation, which is larger than packed weights
            del node.metadata_props[:]
            node.doc_string = ""
        for value in (*part.input, *part.output, *part.value_info):
            del value.metadata_props[:]
        del part.value_info[:]
        del part.metadata_props[:]
    return optimized


def shared(model: Model) -> set[str]:
    """Return the weights that the graph reads more than once, or that are equal to others."""
    nodes = [node for part in _graphs(model.graph) for node in part.node if node.op_type not in _NO_COPY]
    reads = Counter(name for node in nodes for name in node.input)
    same: dict[Any, list[str]] = {}
    for tensor in model.graph.initializer:
        if len(tensor.dims) > 1:
            same.setdefault(_content(tensor), []).append(tensor.name)
    return {name for names in same.values() for name in names if len(names) > 1 or reads[name] > 1}


def merge_equal(model: Model) -> int:
    """Keep one of each set of equal weights; return the bytes saved."""
    first: dict[Any, str] = {}
    instead: dict[str, str] = {}
    saved = 0
    for tensor in model.graph.initializer:
        content = _content(tensor)
        name = first.setdefault(content, tensor.name)
        if name != tensor.name:
            instead[tensor.name] = name
            saved += len(content[-1])
    left = [tensor for tensor in model.graph.initializer if tensor.name not in instead]
    if instead:
        del model.graph.initializer[:]
        model.graph.initializer.extend(left)
        _rename(model.graph, instead)
    return saved


def readers(graph: Graph, name: str) -> list[Any]:
    """Return the nodes that read a tensor, inner graphs included."""
    return [node for part in _graphs(graph) for node in part.node if name in node.input]


def prune(model: Model) -> None:
    """Drop weights that nothing reads any more, and unused operator sets."""
    graph = model.graph
    read = {name for part in _graphs(graph) for node in part.node for name in node.input}
    left = [t for t in graph.initializer if t.name in read or any(t.name == value.name for value in graph.output)]
    del graph.initializer[:]
    graph.initializer.extend(left)
    used = {"", *(node.domain for part in _graphs(graph) for node in part.node)}
    imports = [entry for entry in model.opset_import if entry.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(imports)


def _rename(graph: Graph, names: Mapping[str, str]) -> None:
    """Rename the inputs of all nodes."""
    for part in _graphs(graph):
        for node in part.node:
            for i, name in enumerate(node.input):
                if name in names:
                    node.input[i] = names[name]


def _graphs(graph: Graph) -> Iterator[Graph]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for part in (attribute.g, *attribute.graphs):
                if part.node:
                    yield from _graphs(part)


def _content(tensor: Any) -> tuple[int, tuple[int, ...], bytes]:
    from onnx import numpy_helper

    raw = tensor.raw_data or numpy_helper.to_array(tensor).tobytes()
    return tensor.data_type, tuple(tensor.dims), raw


def absorb_norm(graph: Graph, node: Any, grid: Grid, positive: bool) -> Grid | None:
    """Remove the norm after the node and return the grid with its steps scaled; None if there is no such norm.

    Args:
        positive: Only if all steps stay above 0, which compilers require of scales.
    """
    from onnx import numpy_helper

    norm = _norm_after(graph, node)
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


def _norm_after(graph: Graph, node: Any) -> Any:
    """Return the norm that is the only reader of the node's output; None if there is none."""
    output = node.output[0]
    readers = [other for other in graph.node if output in other.input]
    if len(readers) != 1 or any(value.name == output for value in graph.output):
        return None
    norm = readers[0]
    plain = norm.op_type == "BatchNormalization" and not _attribute(norm, "training_mode", 0)
    return norm if plain and norm.input[0] == output and len(norm.output) == 1 else None


def output_axis(node: Any) -> int | None:
    """Return the dimension of the weight that holds the output channels; None if there is none."""
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
