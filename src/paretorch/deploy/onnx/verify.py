"""Running an exported file: its outputs must be the module's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paretorch.errors import ConfigError
from paretorch.support.eval_mode import checked_example
from paretorch.support.inputs import ModelCall, named_tensors


def outputs_of(model: nn.Module, call: ModelCall) -> dict[str, Tensor]:
    """Return the tensors that the module gives for a call, by their names in the file."""
    with checked_example(*call.tensors), torch.no_grad():
        output = call(model)
    found = named_tensors(output)
    if not found:
        raise ConfigError(f"export_onnx needs a module that returns tensors, not {type(output).__name__}")
    if any(bool(tensor.isnan().any()) for tensor in found.values()):
        raise ConfigError("Outputs of the module on the example are NaN, so no file can be compared with it")
    taken = set(call.names(model))
    return {f"output_{name}" if name in taken else name: tensor for name, tensor in found.items()}


def verify(path: str, model: nn.Module, call: ModelCall, expected: Mapping[str, Tensor], tolerance: float) -> None:
    """Run the file with onnxruntime, and raise if an output differs from the expected one."""
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        found = session.run(list(expected), feed(model, call))
    except Exception as error:  # onnxruntime raises types of its own
        double = any(tensor.dtype == torch.float64 for tensor in expected.values())
        hint = "; export model.float(), with a float example" if double else ""
        raise ConfigError(f"onnxruntime cannot run the exported network: {str(error).splitlines()[0]}{hint}") from error
    compare(found, expected, tolerance, "onnxruntime")


def feed(model: nn.Module, call: ModelCall) -> dict[str, np.ndarray[Any, Any]]:
    return {name: tensor.numpy() for name, tensor in zip(call.names(model), call.tensors, strict=True)}


def compare(found: Sequence[Any], expected: Mapping[str, Tensor], tolerance: float, runtime: str) -> None:
    """Raise if an output of the runtime differs from the expected one."""
    for (name, tensor), output in zip(expected.items(), found, strict=True):
        wanted = tensor.detach().numpy().astype(np.float64)
        scale = max(float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0)), 1e-6)
        apart = math.inf
        if output.shape == wanted.shape:
            other = output.astype(np.float64) != wanted  # equal infinities have no difference
            apart = float(np.abs(output[other] - wanted[other]).max(initial=0.0))
        if not apart <= tolerance * scale:
            which = "output" if len(found) == 1 else name
            raise ConfigError(
                f"{runtime}'s {which} differs from torch's by {apart:.2g}; tolerance is {tolerance * scale:.2g}"
            )
