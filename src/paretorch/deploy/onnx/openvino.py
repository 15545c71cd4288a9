"""Running an ONNX file with OpenVINO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paretorch.errors import ConfigError

# In fp32 and without rounding inputs to 8 bits, so that outputs can be compared.
_EXACT = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}


def run_openvino(path: str, feed: Mapping[str, Any]) -> Sequence[Any]:
    """Return the outputs of the file on a CPU, in their order; raises if OpenVINO cannot read or run it."""
    import openvino

    try:
        compiled = openvino.Core().compile_model(path, "CPU", _EXACT)
        found = compiled(dict(feed))
    except Exception as error:  # OpenVINO raises errors of its own types
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ConfigError(f"OpenVINO cannot run the exported network: {lines[-1] if lines else error}") from error
    return [found[output] for output in compiled.outputs]
