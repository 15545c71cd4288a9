"""Networks with weights on grids, and functions to inspect their files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, numpy_helper
from torch import Tensor, nn

from paretorch.methods.precision.grid import quantize


def on_grid(weight: Tensor, precision: int, scale: float = 0.125) -> None:
    """Odd codes of up to so many bits, and zeros."""
    p = torch.randint(0, precision + 1, weight.shape, dtype=torch.int32)
    with torch.no_grad():
        weight.copy_(quantize(torch.randn(weight.shape), p) * scale)


def settle(model: nn.Module) -> nn.Module:
    """Norms as training leaves them: some factors negative, one of them 0."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                module.weight.uniform_(-0.5, 1.5)
                module.weight[0] = 0.0
                module.bias.normal_()
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2.0)
    return model.eval()


class Mixed(nn.Module):
    """Convolutions and Linear layers of 1, 2, 4 and 32 bits, one with a step that is no power of two."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one = nn.Conv2d(3, 16, 3, padding=1)
        self.two = nn.Conv2d(16, 16, 3, padding=1, groups=2, bias=False)
        self.up = nn.ConvTranspose2d(16, 8, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(16), nn.BatchNorm2d(16), nn.BatchNorm2d(8)])
        self.step = nn.Linear(8 * 16, 32, bias=False)
        self.norm = nn.BatchNorm1d(32)
        self.dense = nn.Linear(32, 32)
        self.head = nn.Linear(32, 10)
        on_grid(self.one.weight, 1)
        on_grid(self.two.weight, 3)
        on_grid(self.up.weight, 2, 0.5)
        on_grid(self.head.weight, 5)
        with torch.no_grad():
            self.step.weight.copy_(torch.randint(-2, 2, self.step.weight.shape) * torch.tensor(0.0371))
        settle(self)

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip((self.one, self.two, self.up), self.norms, strict=True):
            x = torch.relu(norm(layer(x)))
        return self.head(torch.relu(self.dense(self.norm(self.step(x.flatten(1))))))


class Looped(nn.Module):
    """Equal shapes in a row, as folding likes them."""

    def __init__(self, channels: int = 24, layers: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1)
        self.convs = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(layers))
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(layers))
        self.head = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = torch.relu(norm(conv(x)))
        return self.head(x.mean((2, 3)))


def constants(path: Path) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}


def types(path: Path) -> dict[str, str]:
    """Name of a weight's tensor -> its type."""
    graph = onnx.load(path).graph
    return {t.name: TensorProto.DataType.Name(t.data_type) for t in graph.initializer if len(t.dims) > 1}


def operators(path: Path | str) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def loaded(path: Path) -> Counter[str]:
    """The operators that are left when onnxruntime has loaded the file."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(path.with_suffix(".loaded"))
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return operators(options.optimized_model_filepath)


def run(path: Path, x: Tensor) -> Any:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {"input": x.numpy()})[0]


def opset(path: Path) -> int:
    return int(onnx.load(path).opset_import[0].version)
