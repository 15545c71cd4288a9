"""A network as int8 for onnxruntime: weights by channel, activations by the ranges that some batches give."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from paretorch.deploy.onnx import export_onnx


def write_int8(model: nn.Module, path: Path, batches: list[Tensor]) -> Path:
    """Write the int8 file and return its path; `batches` of inputs calibrate it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return export_onnx(model, batches[0][:2], path, calibrate=iter(batches))


class OnnxNetwork(nn.Module):
    """An ONNX file as a module, run by onnxruntime on the CPU: what it computes is what the file computes."""

    def __init__(self, path: Path, threads: int = 1) -> None:
        import onnxruntime

        super().__init__()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._input = self._session.get_inputs()[0].name

    def forward(self, inputs: Tensor) -> Tensor:
        (output,) = self._session.run(None, {self._input: inputs.detach().cpu().float().numpy()})
        return torch.from_numpy(output).to(inputs.device)
