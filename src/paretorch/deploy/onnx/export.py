"""Export to ONNX: weights in as few bits as they need, each once, and the file verified by running it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paretorch.deploy.artefact import StrPath
from paretorch.deploy.calibrate import check_percentile
from paretorch.deploy.codec.container import beside
from paretorch.deploy.onnx.graph import INPUT, OUTPUT, Model, merge_equal, optimize, prune, shared, trace
from paretorch.deploy.onnx.int8 import SIGNS, narrow, quantize_int8, share_codes
from paretorch.deploy.onnx.pack import CODES, FORMS, LOW, STEPS, Packing, find_packing, finished, pack
from paretorch.deploy.plain import copied
from paretorch.deploy.plain import plain as plain_module
from paretorch.edits import QuantizedActivation
from paretorch.errors import ConfigError, MissingExtraError
from paretorch.support.checks import require_number
from paretorch.support.eval_mode import trying

_QUANTIZED_TOLERANCE = 0.05  # a value between two levels may be rounded to either
_HALF_TOLERANCE = 1e-2  # fp16 has three digits


def export_onnx(
    model: nn.Module,
    example: Tensor,
    path: StrPath,
    *,
    weights: str = "packed",
    tolerance: float = 1e-4,
    calibrate: Iterable[Any] | None = None,
    percentile: float | None = None,
) -> Path:
    """Write the module, in eval mode, as one ONNX file and return its path.

    The file is run with onnxruntime on the example, and on its first row alone. If an output differs from the module's too
    much, nothing is written and an error says by how much. A weight that several layers read is stored once.

    Args:
        example: A batch of inputs.
        weights: "packed": a weight whose values are whole multiples of a step (SMOL's precisions, LSQ and others; read off
            the values, exact in fp32 and fp16) is stored as codes of 2 to 16 bits that onnxruntime multiplies out when it
            loads the file, and runs as fast as fp32. "qdq": the same with DequantizeLinear, for compilers that keep the
            integers; onnxruntime on CPUs unpacks these at every call (2 to 3 times as long for ResNet-20, see
            `benchmarks/onnx_export.py`). "fp32": plain numbers.
        tolerance: The largest difference of an output to accept, relative to the largest output. At least 0.05 with
            quantized activations (a value between two levels may be rounded to either), and 0.01 in fp16.
        calibrate: Batches of inputs; with them the file is int8: weights per channel, those on a grid with their own values
            (in fewer bits on disk if "packed"), activations by the ranges that these batches give. It is run, but not
            compared: measure its accuracy.
        percentile: With `calibrate`, cut the ranges at this percentile instead of the smallest and largest value.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        if find_spec(package) is None:
            raise MissingExtraError(f"export_onnx needs {package}: pip install 'paretorch[export]'")
    if not isinstance(example, Tensor) or example.dim() < 1 or len(example) < 1:
        raise ConfigError("example must be a tensor whose first dimension is the batch, with at least one row")
    if weights not in (*FORMS, "fp32"):
        raise ConfigError(f'weights={weights!r}: use "packed", "qdq" or "fp32"')
    if percentile is not None and calibrate is None:
        raise ConfigError("percentile= is about int8 export: give calibrate=, batches of inputs, too")
    check_percentile(percentile)
    require_number("tolerance", tolerance, 0.0, math.inf, "give the largest difference, relative to the largest output")
    plain = copied(plain_module(model, "export_onnx"), "export_onnx").cpu()
    kinds = {tensor.dtype for tensor in (*plain.parameters(), example) if tensor.is_floating_point()}
    if torch.bfloat16 in kinds:
        raise ConfigError(
            "onnxruntime does not compute in bfloat16 on a CPU: export model.float(), with a float example"
        )
    if torch.float16 in kinds and calibrate is not None:
        raise ConfigError("onnxruntime does not turn fp16 into int8: export model.float(), with a float example")
    if torch.float16 in kinds:
        tolerance = max(tolerance, _HALF_TOLERANCE)
    if any(isinstance(module, QuantizedActivation) for module in plain.modules()):
        tolerance = max(tolerance, _QUANTIZED_TOLERANCE)
    rows = example.detach().cpu()
    if len(rows) == 1:
        rows = torch.cat([rows, rows])  # the exporter takes a batch of one for a constant
    target = Path(path)
    if target.is_dir():
        raise ConfigError(f"{target} is a folder: give the file, such as {target / 'model.onnx'}")
    wanted = []
    for part in (rows, rows[:1]):
        with trying(part), torch.no_grad():
            wanted.append((part, plain(part)))
        if isinstance(wanted[-1][1], Tensor) and bool(wanted[-1][1].isnan().any()):
            raise ConfigError("Outputs of the module on the example are NaN, so that no file can be compared with it")
    if not isinstance(wanted[0][1], Tensor):
        raise ConfigError(f"export_onnx needs a module that returns one tensor, not {type(wanted[0][1]).__name__}")
    form = weights
    if calibrate is not None:
        form = "int8" if weights == "packed" else "fp32"  # what onnxruntime's quantizer reads
    with beside(target, ".onnx") as temporary:
        _export(plain, rows, temporary, form)
        for part, expected in wanted:
            _verify(temporary, part, expected, tolerance)
        if calibrate is not None:
            quantize_int8(temporary, temporary, calibrate, percentile)
            _finish_int8(temporary)
            _verify(temporary, *wanted[0], math.inf)
    return target


def _export(model: nn.Module, rows: Tensor, path: str, weights: str) -> None:
    if {INPUT, OUTPUT} & {*model._parameters, *model._buffers}:
        model = nn.Sequential(model)  # so that no tensor is named like an input or output of the graph
    values = {
        name: parameter.detach().numpy()
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if parameter.dtype in ((torch.float32, torch.float16) if weights in FORMS else (torch.float32,))
    }
    packing = find_packing(values, weights) if weights != "fp32" else Packing({}, {})
    graph = trace(model, rows, packing.opset)
    if weights == "int8":
        packing = Packing({}, {})  # onnxruntime's quantizer needs plain weights; the opset is for the packing after it
    graph = optimize(graph, shared(graph) | packing.grids.keys())
    merged = merge_equal(graph)
    pack(graph, packing, weights)
    _write(graph, path, merged)


def _finish_int8(path: str) -> None:
    import onnx

    graph = onnx.load(path)
    merged = share_codes(graph)
    narrow(graph)
    _write(graph, path, merged + merge_equal(graph))


def _write(model: Model, path: str, merged: int) -> None:
    prune(model)
    del model.metadata_props[:]
    entry = model.metadata_props.add()
    entry.key, entry.value = "paretorch", _summary(model, merged)
    try:
        Path(path).write_bytes(finished(model).SerializeToString())
    except ValueError as error:
        raise ConfigError("The network is too large for one ONNX file, which holds 2 GB") from error


def _summary(graph: Model, merged: int) -> str:
    """Return the number of weights by type, in words, to be kept in the file."""
    from onnx import TensorProto

    kinds = {t.name: TensorProto.DataType.Name(t.data_type) for t in graph.graph.initializer if len(t.dims) > 1}
    count: Counter[str] = Counter()
    for name, kind in kinds.items():
        if not name.endswith((STEPS, SIGNS, LOW)):
            low = kinds.get(name.removesuffix(CODES) + LOW)
            count[kind if low is None else f"{kind}+{low}"] += 1
    words = ", ".join(f"{number} {kind}" for kind, number in sorted(count.items()))
    return f"weights: {words}" + (f"; {merged} bytes of equal tensors merged" if merged else "")


def _verify(path: str, rows: Tensor, expected: Tensor, tolerance: float) -> None:
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        output = session.run(None, {session.get_inputs()[0].name: rows.numpy()})[0].astype(np.float64)
    except Exception as error:  # onnxruntime raises types of its own
        hint = "; export model.float(), with a float example" if expected.dtype == torch.float64 else ""
        raise ConfigError(f"onnxruntime cannot run the exported network: {str(error).splitlines()[0]}{hint}") from error
    wanted = expected.detach().numpy().astype(np.float64)
    scale = max(float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0)), 1e-6)
    apart = math.inf
    if output.shape == wanted.shape:
        other = output != wanted  # equal infinities have no difference
        apart = float(np.abs(output[other] - wanted[other]).max(initial=0.0))
    if not apart <= tolerance * scale:
        raise ConfigError(
            f"onnxruntime's output differs from torch's by {apart:.2g}; tolerance is {tolerance * scale:.2g}"
        )
