"""ExecuTorch programs (.pte) whose linear layers, convolutions and embeddings hold the trained codes.

XNNPACK multiplies integers by integers: it rounds the inputs of a layer with codes to 8 bits for each token or image, by their own range, while it
runs. So weights are those of the network bit for bit, and outputs differ by the rounding of inputs. What holds the codes:

    Linear, Conv1D   torchao's tensor for exports: 4 bits with steps in bf16 for 32, 64 or 128 inputs, or 8 bits with a step per output
    Conv2d           dequantize_per_channel of 8 bits, behind a rounding of its input
    Embedding        embedding_4bit, embedding_byte: nothing else is rounded

Other layers stay in fp32; XNNPACK runs those that it knows, ExecuTorch's portable operations the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paretorch.deploy.plain import copied
from paretorch.deploy.runtimes.read import Stored, read_stored
from paretorch.deploy.runtimes.registry import Runtime
from paretorch.errors import ConfigError, warn
from paretorch.support.eval_mode import checked_example, first_sentence
from paretorch.support.files import replacing_checked
from paretorch.support.inputs import ModelCall, TensorFunction
from paretorch.support.processes import suppress_output

_TOLERANCE = 0.05  # of the largest output: a value halfway between two levels may be rounded to either
_EPSILON = torch.finfo(torch.float32).eps  # of the range of an input


def write_executorch(model: nn.Module, call: ModelCall, path: str | Path, runtime: Runtime) -> list[str]:
    """Write a plain network and return the names of weights off the runtime's grids; raises if the program's outputs are others.

    Args:
        call: As many rows and tokens as the program takes at most; with a single row, that many exactly.
    """
    with suppress_output():
        _load_operators()
    stored = {name: one for name, one in read_stored(model, runtime).items() if runtime.formats(one.site)}
    packed = TensorFunction(_packed(model, stored), call)
    with checked_example(*call.tensors), torch.no_grad():
        parts = [(part, packed(*part.tensors)) for part in (call, call.first())]
    with replacing_checked(Path(path), ".pte") as temporary:
        program = _lowered(packed, call, type(model).__name__)
        Path(temporary).write_bytes(program)
        for part, expected in parts if call.batch > 1 else parts[:1]:  # of one row, the rest is the same
            _verify(temporary, part, expected)
    return [name for name, one in stored.items() if one.form is None]


def _load_operators() -> None:
    """Register the operators on integers: those of torch, and ExecuTorch's for embeddings, for tracing and for running."""
    for module in (
        "torch.ao.quantization.fx._decomposed",
        "executorch.exir.passes._quant_patterns_and_replacements",
        "executorch.kernels.quantized",
    ):
        import_module(module)


def _packed(model: nn.Module, stored: Mapping[str, Stored]) -> nn.Module:
    """Return a copy of a network with codes in its layers."""
    packed = copied(model, "export")
    instead: dict[nn.Module, nn.Module] = {}
    for one in stored.values():
        for _, _, owner in one.site.owners if one.form is not None else ():
            module = packed.get_submodule(owner)
            instead[module] = _layer(module, one)
    for parent in list(packed.modules()):
        for name, child in parent._modules.items():
            if child in instead:
                parent._modules[name] = instead[child]
    return instead.get(packed, packed)


def _layer(module: nn.Module, one: Stored) -> nn.Module:
    """Return a layer with codes for its weight: a linear layer itself, or what takes the place of another."""
    if isinstance(module, nn.Embedding):
        return _CodedEmbedding(one)
    if isinstance(module, nn.Conv2d):
        return _CodedConv2d(module, one)
    linear = module
    if not isinstance(module, nn.Linear):  # a Conv1D, whose weight is inputs by outputs
        rows, groups, block = one.codes.shape
        linear = nn.Linear(groups * block, rows)
        linear.bias = module.bias  # type: ignore[assignment]
    linear.weight = nn.Parameter(_tensor(one), requires_grad=False)
    return linear


def _tensor(one: Stored) -> Tensor:
    from torchao.quantization import IntxUnpackedToInt8Tensor

    assert one.form is not None
    rows, _, block = one.codes.shape
    kind = getattr(torch, f"int{one.form.bits}")
    codes = torch.from_numpy(one.codes.reshape(rows, -1).astype(np.int8))
    steps = torch.from_numpy(one.steps)
    none = torch.zeros_like(steps, dtype=torch.int8)
    made: Tensor = IntxUnpackedToInt8Tensor(codes, steps, none, kind, (1, block), torch.float32, "int8_asym_per_token")
    return made


class _CodedEmbedding(nn.Module):
    """Rows of codes, of which those that are asked for are multiplied out."""

    codes: Tensor
    steps: Tensor

    def __init__(self, one: Stored) -> None:
        super().__init__()
        assert one.form is not None
        self.bits = one.form.bits
        rows = torch.from_numpy(one.codes.reshape(len(one.codes), -1).astype(np.int8))
        if self.bits == 4:  # the first of each pair in the upper half of a byte
            raised = (rows - one.form.low).to(torch.uint8)
            rows = raised[:, ::2] << 4 | raised[:, 1::2]
        self.register_buffer("codes", rows)
        self.register_buffer("steps", torch.from_numpy(one.steps))

    def forward(self, indices: Tensor) -> Tensor:
        operators = torch.ops.quantized_decomposed
        found: Tensor
        if self.bits == 4:
            found = operators.embedding_4bit(self.codes, self.steps, None, -8, 7, indices)
        else:
            found = operators.embedding_byte(self.codes, self.steps, None, -127, 127, indices)
        return found


class _CodedConv2d(nn.Module):
    """A convolution that multiplies its weight out of codes, behind a rounding of its input to 8 bits by its own range."""

    codes: Tensor
    steps: Tensor
    zeros: Tensor

    def __init__(self, conv: nn.Conv2d, one: Stored) -> None:
        super().__init__()
        codes = one.codes.reshape(conv.weight.shape).astype(np.int8)
        steps = torch.from_numpy(one.steps.reshape(-1))
        self.register_buffer("codes", torch.from_numpy(codes))
        self.register_buffer("steps", steps)
        self.register_buffer("zeros", torch.zeros(len(steps), dtype=torch.int64))
        self.conv = conv
        del conv.weight

    def forward(self, x: Tensor) -> Tensor:
        operators = torch.ops.quantized_decomposed
        span, kind = (-128, 127), torch.int8
        step, zero = operators.choose_qparams.tensor(x, *span, _EPSILON, kind)
        rounded = operators.quantize_per_tensor.tensor(x, step, zero, *span, kind)
        near = operators.dequantize_per_tensor.tensor(rounded, step, zero, *span, kind)
        weight = operators.dequantize_per_channel(self.codes, self.steps, self.zeros, 0, -127, 127, kind)
        output: Tensor = self.conv._conv_forward(near, weight, self.conv.bias)
        return output


def _lowered(packed: TensorFunction, call: ModelCall, name: str) -> bytes:
    """Return the program, for batches and sequences up to the call's if the network allows it, else for exactly these."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    reason = ""
    for sequence, batch in ((True, True), (False, True), (False, False)):
        shapes = tuple(_shape(call, tensor, sequence, batch) for tensor in call.tensors)
        try:
            with suppress_output(), torch.no_grad():
                exported = torch.export.export(packed, tuple(call.tensors), dynamic_shapes=(shapes,), strict=False)
                lowered = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
                program = bytes(lowered.to_executorch().buffer)
        except Exception as error:  # the exporter raises its own types, on many layers
            reason = reason or first_sentence(error)
            continue
        if reason:
            warn(f"The program takes {'sequences' if batch else 'inputs'} of the example's shape alone: {reason}")
        return program
    raise ConfigError(f"{name} cannot be exported to ExecuTorch: {reason}")


def _shape(call: ModelCall, tensor: Tensor, sequence: bool, batch: bool) -> dict[int, Any] | None:
    found: dict[int, Any] = {}
    if batch and call.batch > 1 and call.has_batch(tensor):
        found[0] = torch.export.Dim("batch", max=call.batch)
    if sequence and call.has_sequence(tensor) and tensor.shape[1] > 1:
        found[1] = torch.export.Dim("sequence", max=tensor.shape[1])
    return found or None


def _verify(path: str, call: ModelCall, expected: tuple[Tensor, ...]) -> None:
    """Run the program with ExecuTorch's runtime, and raise if an output differs from the network's with rounded inputs."""
    from executorch.runtime import Runtime as Engine
    from executorch.runtime import Verification

    try:
        program = Engine.get().load_program(path, verification=Verification.Minimal)
        found = program.load_method("forward").execute([tensor.contiguous() for tensor in call.tensors])
    except Exception as error:  # the runtime raises errors of its own types
        raise ConfigError(f"ExecuTorch cannot run the exported network: {first_sentence(error)}") from error
    for i, (tensor, own) in enumerate(zip(expected, found, strict=True)):
        scale = max(float(tensor.abs().max()), 1e-6)
        apart = float((own - tensor).abs().max()) if own.shape == tensor.shape else float("inf")
        if not apart <= _TOLERANCE * scale:
            raise ConfigError(
                f"ExecuTorch's output {i} differs from torch's by {apart:.2g}; tolerance is {_TOLERANCE * scale:.2g}"
            )
