"""Export to ONNX: each weight once and in as few bits as it needs; the file is verified by running it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paretorch.core.formats import FORMATS
from paretorch.deploy.artefact import StrPath
from paretorch.deploy.calibrate import calls_of, check_percentile
from paretorch.deploy.codec.container import require_plain_values
from paretorch.deploy.onnx.advice import advice
from paretorch.deploy.onnx.blocks import DEQUANTIZE, MATMULNBITS, is_blocked, is_half, store_blocks, store_halves
from paretorch.deploy.onnx.blocks import OPSET as BLOCK_OPSET
from paretorch.deploy.onnx.cache import CachedCalls, with_cache
from paretorch.deploy.onnx.graph import Model, dynamic_dims, merge_equal, optimize, prune, shared, trace
from paretorch.deploy.onnx.int8 import SIGNS, narrow, quantize_int8, share_codes
from paretorch.deploy.onnx.openvino import run_openvino
from paretorch.deploy.onnx.pack import CODES, FORMS, LOW, STEPS, Packing, find_packing, finished, pack
from paretorch.deploy.onnx.verify import compare, feed, outputs_of, verify
from paretorch.deploy.plain import copied
from paretorch.deploy.plain import plain as plain_module
from paretorch.deploy.runtimes.read import Stored, read_stored
from paretorch.deploy.runtimes.registry import Runtime, find_runtime
from paretorch.edits import QuantizedActivation
from paretorch.errors import ConfigError, MissingExtraError, warn
from paretorch.support.checks import require_number
from paretorch.support.files import replacing_checked
from paretorch.support.inputs import Example, ModelCall, TensorFunction, read_example

_QUANTIZED_TOLERANCE = 0.05  # a value halfway between two levels may be rounded to either
_HALF_TOLERANCE = 1e-2  # fp16 has three digits


def export_onnx(
    model: nn.Module,
    example: Example,
    path: StrPath,
    *,
    weights: str = "packed",
    tolerance: float = 1e-4,
    calibrate: Iterable[Any] | None = None,
    percentile: float | None = None,
    runtime: str | None = None,
    cache: bool = False,
) -> Path:
    """Write the module, in eval mode, as one ONNX file and return its path.

    The file is run with onnxruntime on the example, and on its first row alone. If an output differs from the module's too
    much, nothing is written and an error says by how much. A weight that several layers read is stored once. One tensor is
    called "input" or "output" in the file; several have the names of the model's arguments and of the parts of its output, and
    "output_0", "output_1" for those of a tuple. The batch size is dynamic, and so is the length of sequences of tokens if the model allows it: the
    second dimension of whole numbers, and of tensors that are as long.

    Args:
        example: A batch of inputs: a tensor, a tuple of the model's arguments, or a dict of keyword arguments. Every tensor
            whose first dimension is as long as that of most of them has the batch there.
        weights: "packed": a weight whose values are whole multiples of a step (SMOL's precisions, LSQ and others; read off
            the values, exact in fp32 and fp16) is stored as codes of 2 to 16 bits that onnxruntime multiplies out when it
            loads the file, and runs as fast as fp32. "qdq": the same with DequantizeLinear, for compilers that keep the
            integers; onnxruntime on CPUs unpacks these at every call (2 to 3 times as long for ResNet-20, see
            `benchmarks/onnx_export.py`). "fp32": plain numbers.
        tolerance: The largest difference of an output to accept, relative to the largest output. At least 0.05 with
            quantized activations (a value between two levels may be rounded to either), and 0.01 in fp16.
        calibrate: Batches of inputs, like the example or with labels after them. If given, the file is int8: weights per
            channel, those on a grid with their own values (in fewer bits on disk if "packed"), and activations by their ranges
            on these batches. The file is run but not compared: measure its accuracy.
        percentile: With `calibrate`, cut the ranges at this percentile instead of the smallest and largest value.
        runtime: "onnxruntime-int4", "onnxruntime-int8" or "openvino": weights that lie on blocks of inputs with a step each, as
            `compress(runtime=)` trains them, are stored so, bit for bit. Others are stored as with "packed", or in fp16 if that is exact.
            The file is run by that runtime.
        cache: For causal language models of transformers: the file has the keys and values of earlier tokens as inputs `past_key_values.0.key`,
            `past_key_values.0.value` and so on, and those with the new tokens as outputs `present.0.key` …, as optimum and
            onnxruntime-genai name them. The example is a prompt, of 5 tokens or more; an attention mask covers the past too.

    Example:
        >>> import tempfile, torch, paretorch as pt
        >>> network = torch.nn.Sequential(torch.nn.Linear(8, 4)).eval()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pt.export_onnx(network, torch.randn(2, 8), folder + "/network.onnx")
        ...     path.name, path.stat().st_size > 0
        ('network.onnx', True)
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        if find_spec(package) is None:
            raise MissingExtraError(f"export_onnx needs {package}: pip install 'paretorch[export]'")
    target_runtime = None if runtime is None else _onnx_runtime(runtime, weights)
    call = read_example(example).map(lambda tensor: tensor.detach()).to("cpu")
    if weights not in (*FORMS, "fp32"):
        raise ConfigError(f'weights={weights!r}: use "packed", "qdq" or "fp32"')
    if percentile is not None and calibrate is None:
        raise ConfigError("percentile= is for int8 export: give calibrate=, batches of inputs, too")
    check_percentile(percentile)
    require_number("tolerance", tolerance, 0.0, math.inf, "give the largest difference, relative to the largest output")
    plain = copied(plain_module(model, "export_onnx"), "export_onnx").cpu()
    require_plain_values(plain.state_dict())
    tolerance = max(tolerance, _least_tolerance(plain, call, calibrate is not None))
    if call.batch == 1:
        call = call.rows(lambda rows: torch.cat([rows, rows]))  # the exporter takes a batch of one for a constant
    target = Path(path)
    if target.is_dir():
        raise ConfigError(f"{target} is a folder: give the file, such as {target / 'model.onnx'}")
    form = weights
    stored: dict[str, Stored] = {}
    if target_runtime is not None and calibrate is None:
        stored = {
            name: one for name, one in read_stored(plain, target_runtime).items() if is_blocked(one) or is_half(one)
        }
    if calibrate is not None:
        form = "int8" if weights == "packed" else "fp32"  # what onnxruntime's quantizer reads
    block_form = DEQUANTIZE if runtime == "openvino" else MATMULNBITS
    cached = _with_cache(plain, call, calibrate) if cache else None
    if cached is not None:
        plain, call = cached.model, cached.traced
    parts = (call, call.first()) if cached is None else (call, *cached.others)
    wanted = [(part, outputs_of(plain, part)) for part in parts]
    with replacing_checked(target, ".onnx") as temporary:
        if cached is not None:
            _export(plain, call, temporary, form, stored, block_form, cached.dims)
        elif not _export_sequences(plain, call, temporary, form, stored, block_form, tolerance):
            _export(plain, call, temporary, form, stored, block_form, dynamic_dims(call, False))
        for part, expected in wanted:
            verify(temporary, plain, part, expected, tolerance)
            if runtime == "openvino":
                compare(run_openvino(temporary, feed(plain, part)), expected, tolerance, "OpenVINO")
        if calibrate is not None:
            names = call.names(plain)
            feeds = (dict(zip(names, one.tensors, strict=True)) for one in calls_of(plain, calibrate, call))
            quantize_int8(temporary, temporary, feeds, percentile)
            _finish_int8(temporary)
            verify(temporary, plain, *wanted[0], math.inf)
        elif runtime is None and weights in FORMS and (sentence := advice(temporary, weights)):
            warn(sentence)
    return target


def _onnx_runtime(name: str, weights: str) -> Runtime:
    """Return a runtime that reads ONNX files."""
    found = find_runtime(name)
    if found.kind != "onnx":
        raise ConfigError(f"runtime={name!r} reads no ONNX file: use paretorch.export")
    if weights != "packed":
        raise ConfigError(f"runtime={name!r} says how weights are stored: leave out weights={weights!r}")
    found.require_package()
    return found


def _with_cache(model: nn.Module, call: ModelCall, calibrate: Iterable[Any] | None) -> CachedCalls:
    if calibrate is not None:
        raise ConfigError("cache=True and calibrate= do not go together: leave out calibrate=")
    return with_cache(model, call)


def _least_tolerance(model: nn.Module, call: ModelCall, int8: bool) -> float:
    """Return the tolerance that the module's types need; raise for types that onnxruntime does not run."""
    kinds = {tensor.dtype for tensor in (*model.parameters(), *call.tensors) if tensor.is_floating_point()}
    if torch.bfloat16 in kinds:
        raise ConfigError(
            "onnxruntime does not compute in bfloat16 on a CPU: export model.float(), with a float example"
        )
    if torch.float16 in kinds and int8:
        raise ConfigError("onnxruntime does not turn fp16 into int8: export model.float(), with a float example")
    quantized = any(isinstance(module, QuantizedActivation) for module in model.modules())
    return max(_HALF_TOLERANCE if torch.float16 in kinds else 0.0, _QUANTIZED_TOLERANCE if quantized else 0.0)


def _export_sequences(
    model: nn.Module,
    call: ModelCall,
    path: str,
    weights: str,
    stored: Mapping[str, Stored],
    block_form: str,
    tolerance: float,
) -> bool:
    """Write a file that takes sequences of any length, and return whether it does; warns if only the model itself takes them."""
    length = call.sequence
    if length is None or length < 2:
        return False
    shorter = call.shortened(max(1, length // 2))
    try:
        expected = outputs_of(model, shorter)
    except ConfigError:  # such as a linear layer over the whole sequence
        return False
    try:
        _export(model, call, path, weights, stored, block_form, dynamic_dims(call, True))
        verify(path, model, shorter, expected, tolerance)
    except ConfigError as error:
        warn(f"The file takes sequences of {length} tokens alone, as the example has: {error}")
        return False
    return True


def _export(
    model: nn.Module,
    call: ModelCall,
    path: str,
    weights: str,
    stored: Mapping[str, Stored],
    block_form: str,
    dims: Sequence[Mapping[int, str]],
) -> None:
    inputs, outputs = call.names(model), list(outputs_of(model, call))
    module = model
    # No tensor may be named like an input or output of the graph.
    if inputs != ["input"] or outputs != ["output"] or {*inputs, *outputs} & {*model._parameters, *model._buffers}:
        module = TensorFunction(model, call)
    by_weight = {id(one.site.weight): one for one in stored.values()}
    named = dict(module.named_parameters(remove_duplicate=False))
    own = {name: by_weight[id(parameter)] for name, parameter in named.items() if id(parameter) in by_weight}
    values = {
        name: parameter.detach().numpy()
        for name, parameter in named.items()
        if name not in own
        and parameter.dtype in ((torch.float32, torch.float16) if weights in FORMS else (torch.float32,))
    }
    packing = (
        find_packing(values, weights, BLOCK_OPSET if block_form == DEQUANTIZE else None)
        if weights != "fp32"
        else Packing({}, {})
    )
    graph = trace(module, call, outputs, inputs, max(packing.opset, BLOCK_OPSET if own else 0), dims)
    if weights == "int8":
        packing = Packing({}, {})  # onnxruntime's quantizer needs plain weights; the opset is for the packing after it
    graph = optimize(graph, shared(graph) | packing.grids.keys() | own.keys())
    merged = merge_equal(graph)
    pack(graph, packing, weights)
    store_halves(graph, {name: one for name, one in own.items() if is_half(one)})
    store_blocks(graph, {name: one for name, one in own.items() if is_blocked(one)}, block_form)
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
    """Return the number of weights by type as text, for the file's metadata."""
    from onnx import TensorProto

    kinds = {t.name: TensorProto.DataType.Name(t.data_type) for t in graph.graph.initializer if len(t.dims) > 1}
    count: Counter[str] = Counter()
    for name, kind in kinds.items():
        if not name.endswith((STEPS, SIGNS, LOW)):
            low = kinds.get(name.removesuffix(CODES) + LOW)
            blocked = FORMATS.get(name.rpartition(".")[2])
            count[blocked.name if blocked else kind if low is None else f"{kind}+{low}"] += 1
    words = ", ".join(f"{number} {kind}" for kind, number in sorted(count.items()))
    return f"weights: {words}" + (f"; {merged} bytes of equal tensors merged" if merged else "")
