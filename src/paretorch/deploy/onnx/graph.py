"""The ONNX graph of a module, with chosen weights left as the module holds them, and every weight once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from paretorch.errors import ConfigError
from paretorch.support.silence import quiet

INPUT, OUTPUT = "input", "output"  # of the graph
OPSET = 20  # where nothing needs a later one
_NO_COPY = ("Shape", "Size", "CastLike", "Slice", "Split")  # reads that, folded, do not double a weight
Graph = Any  # onnx.GraphProto and its parts have no types that a checker knows
Model = Any


def trace(model: nn.Module, rows: Tensor, opset: int) -> Model:
    """The module as torch exports it, not optimized: parameters keep their names, the first dimension is free."""
    try:
        with quiet():
            program = torch.onnx.export(
                model,
                (rows,),
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                opset_version=opset,
                external_data=False,
                input_names=[INPUT],
                output_names=[OUTPUT],
                verbose=False,
                optimize=False,
            )
            assert program is not None
            graph = program.model_proto
    except Exception as error:  # the exporter raises its own types, on many layers
        raise ConfigError(f"{type(model).__name__} cannot be exported to ONNX: {_reason(error)}") from error
    if not graph.graph.input[0].type.tensor_type.shape.dim[0].dim_param:
        raise ConfigError(
            f"{type(model).__name__} cannot be exported to ONNX: its forward pass makes a constant of the batch size; "
            "write x.shape[0] where it has len(x) or int(x.shape[0])"
        )
    return graph


def _reason(error: BaseException) -> str:
    """The first line of what went wrong at first: the exporter wraps it in advice on how to report bugs."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def optimize(model: Model, kept: Collection[str]) -> Model:
    """The graph with constants folded and norms merged, except into the weights that are to be kept.

    While the optimizer works, those weights are inputs of the graph: it folds no input into anything. What it would have
    done to them (a transpose, a factor, a norm), onnxruntime does when it loads the file.
    """
    import onnx
    import onnxscript.optimizer

    for tensor in model.graph.initializer:
        if tensor.name in kept:
            model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    with quiet():
        optimized = onnxscript.optimizer.optimize(model)
    real = [value for value in optimized.graph.input if value.name not in kept]
    del optimized.graph.input[:]
    optimized.graph.input.extend(real)
    for part in _graphs(optimized.graph):
        for node in part.node:  # where in the Python source each operation came from: larger than packed weights
            del node.metadata_props[:]
            node.doc_string = ""
        for value in (*part.input, *part.output, *part.value_info):
            del value.metadata_props[:]
        del part.value_info[:]
        del part.metadata_props[:]
    return optimized


def shared(model: Model) -> set[str]:
    """The weights of the graph that it reads more than once, or that are equal to others."""
    nodes = [node for part in _graphs(model.graph) for node in part.node if node.op_type not in _NO_COPY]
    reads = Counter(name for node in nodes for name in node.input)
    same: dict[Any, list[str]] = {}
    for tensor in model.graph.initializer:
        if len(tensor.dims) > 1:
            same.setdefault(_content(tensor), []).append(tensor.name)
    return {name for names in same.values() for name in names if len(names) > 1 or reads[name] > 1}


def merge_equal(model: Model) -> int:
    """Keep one of each set of equal weights; returns the bytes saved."""
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
    """The nodes that read a tensor, inner graphs included."""
    return [node for part in _graphs(graph) for node in part.node if name in node.input]


def prune(model: Model) -> None:
    """Drop the weights that nothing reads any more, and the sets of operators that nothing is from."""
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
    """Let every node read other names."""
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
