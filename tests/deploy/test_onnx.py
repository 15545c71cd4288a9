"""ONNX export: verified by running it, any batch size, and clear errors."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from paretorch.deploy import export_onnx
from paretorch.deploy.onnx import export as onnx_module
from paretorch.errors import ArtefactError, ConfigError, MissingExtraError


def test_a_network_is_exported_and_runs_at_any_batch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)).train()
    path = export_onnx(model, torch.randn(1, 1, 4, 4), tmp_path / "net.onnx")
    assert model.training
    assert list(tmp_path.iterdir()) == [path]
    session = onnxruntime.InferenceSession(path)
    x = torch.randn(7, 1, 4, 4)
    (output,) = session.run(None, {"input": x.numpy()})
    np.testing.assert_allclose(output, model.eval()(x).detach().numpy(), atol=1e-5)


class Named(nn.Module):
    """A weight and a buffer under names that a graph has."""

    def __init__(self) -> None:
        super().__init__()
        self.input = nn.Parameter(torch.randint(0, 2, (16, 64)) * 2.0 - 1.0)
        self.register_buffer("output", torch.randn(64))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.input + self.output


@pytest.mark.parametrize("weights", ["packed", "fp32"])
def test_weights_may_be_named_like_what_the_graph_takes_and_gives(weights: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Named(), torch.randn(3, 16)
    path = export_onnx(model, x, tmp_path / "net.onnx", weights=weights)
    (output,) = onnxruntime.InferenceSession(path).run(["output"], {"input": x.numpy()})
    np.testing.assert_allclose(output, model(x).detach().numpy(), atol=1e-5)


def test_an_export_that_computes_something_else_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = onnx_module._export

    def wrong(model: nn.Module, *rest: Any) -> None:
        with torch.no_grad():
            model.weight.mul_(2.0)
        real(model, *rest)
        with torch.no_grad():
            model.weight.div_(2.0)

    monkeypatch.setattr(onnx_module, "_export", wrong)
    with pytest.raises(ConfigError, match="differs from torch"):
        export_onnx(nn.Linear(3, 2), torch.randn(2, 3), tmp_path / "net.onnx")
    assert list(tmp_path.iterdir()) == []


def test_errors_are_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="does not run"):
        export_onnx(nn.Linear(3, 2), torch.randn(2, 4), tmp_path / "net.onnx")
    half = torch.zeros(2, 3, dtype=torch.float16)
    with pytest.raises(ConfigError, match=r"fp16 into int8: export model\.float\(\)"):
        export_onnx(nn.Linear(3, 2).half(), half, tmp_path / "net.onnx", calibrate=[half])
    with pytest.raises(ConfigError, match="batch"):
        export_onnx(nn.Linear(3, 2), torch.tensor(1.0), tmp_path / "net.onnx")
    with pytest.raises(ConfigError, match="returns tensors, not str"):
        export_onnx(Then(lambda y: "nothing"), torch.randn(2, 4), tmp_path / "net.onnx")
    with pytest.raises(ConfigError, match="onnxruntime cannot run"):  # the sequence comes first, and is no batch
        export_onnx(nn.LSTM(3, 2), torch.randn(2, 4, 3), tmp_path / "net.onnx")
    monkeypatch.setattr(onnx_module, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"paretorch\[export\]"):
        export_onnx(nn.Linear(3, 2), torch.randn(2, 3), tmp_path / "net.onnx")


class Then(nn.Module):
    """A Linear, and something done to what it gives."""

    def __init__(self, then: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.then = nn.Linear(4, 4), then

    def forward(self, x: Tensor) -> Tensor:
        return self.then(self.linear(x))


@pytest.mark.parametrize(
    "then",
    [lambda y: y > 0, lambda y: y.argmax(1), lambda y: y.masked_fill(y > 0, -torch.inf)],
    ids=["bool", "int", "inf"],
)
def test_outputs_of_any_kind_are_compared(then: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Then(then), torch.randn(5, 4)
    path = export_onnx(model, x, tmp_path / "net.onnx")
    (output,) = onnxruntime.InferenceSession(path).run(None, {"input": x.numpy()})
    np.testing.assert_allclose(output, model(x).detach().numpy(), atol=1e-5)


def test_what_onnxruntime_does_not_run_is_told_and_not_kept(tmp_path: Path) -> None:
    model, x = nn.Conv2d(3, 4, 3).double(), torch.randn(2, 3, 5, 5, dtype=torch.float64)
    with pytest.raises(ConfigError, match=r"onnxruntime cannot run the exported network: .*export model.float\(\)"):
        export_onnx(model, x, tmp_path / "net.onnx")
    assert not any(tmp_path.iterdir())


class Counting(nn.Module):
    """A batch size that the exporter takes for a constant, as in the class token of many vision transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.token.expand(len(x), -1), x], 1)


def test_a_constant_batch_size_raises(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"makes the batch size a constant; write x\.shape\[0\]"):
        export_onnx(Counting(), torch.randn(3, 4), tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())


def test_outputs_that_are_no_numbers_cannot_be_compared(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Outputs of the module on the example are NaN"):
        export_onnx(Then(lambda y: y * torch.nan), torch.randn(2, 4), tmp_path / "net.onnx")
    assert not any(tmp_path.iterdir())


def test_a_file_is_readable_and_may_have_a_long_name(tmp_path: Path) -> None:
    path = export_onnx(nn.Linear(3, 2), torch.randn(2, 3), tmp_path / ("a" * 250 + ".onnx"))
    (tmp_path / "like").touch()
    assert path.stat().st_mode == (tmp_path / "like").stat().st_mode


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(onnx_module, "_write", full)
    with pytest.raises(ArtefactError, match="No space left"):
        export_onnx(nn.Linear(3, 2), torch.randn(2, 3), path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
