"""Ranges from data, and the int8 file that they make."""

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from paretorch.deploy import export_onnx
from paretorch.deploy.calibrate import activation_ranges
from paretorch.deploy.onnx.int8 import quantize_int8
from paretorch.errors import ConfigError, MissingExtraError
from paretorch.zoo.data import digits


def test_ranges_are_the_smallest_and_largest_outputs() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2), nn.Tanh()).train()
    x = torch.randn(40, 3)
    found = activation_ranges(model, x.split(8))
    model.eval()
    with torch.no_grad():
        first, last = model[:2](x), model(x)
    assert found.keys() == {"1", "4"}
    assert found["1"] == pytest.approx((float(first.min()), float(first.max())))
    assert found["4"] == pytest.approx((float(last.min()), float(last.max())))
    assert not model[1]._forward_hooks


def test_a_percentile_cuts_outliers() -> None:
    model = nn.Sequential(nn.ReLU()).train()
    x = torch.rand(1000, 1)
    x[0] = 1e6
    assert activation_ranges(model, [(x, 0)])["0"][1] == pytest.approx(1e6)
    assert activation_ranges(model, [(x, 0)], percentile=99.0)["0"][1] < 1.0
    assert model.training


@pytest.mark.parametrize("percentile", [0.0, 50.0, 101.0, float("nan"), "99"])
def test_a_percentile_that_is_none(percentile: Any) -> None:
    with pytest.raises(ConfigError, match="percentile"):
        activation_ranges(nn.ReLU(), [torch.zeros(1, 1)], percentile=percentile)


def test_batches_are_needed() -> None:
    for batches in ([], ["x"], [torch.zeros(0, 3)]):
        with pytest.raises(ConfigError, match="Calibration needs"):
            activation_ranges(nn.Sequential(nn.ReLU()), batches)


def trained() -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    data = digits.load()
    (train_x, train_y), (test_x, test_y) = data.train, data.test
    train_x, test_x = (x.float() / 255 for x in (train_x, test_x))
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(6):
        for x, y in zip(train_x.split(64), train_y.split(64), strict=True):
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model.eval(), train_x, test_x, test_y


def test_int8_is_close_and_small(tmp_path: Path) -> None:
    import onnxruntime

    model, train_x, test_x, test_y = trained()
    full = export_onnx(model, test_x[:4], tmp_path / "full.onnx")
    paths = {
        way: export_onnx(model, test_x[:4], tmp_path / f"{way}.onnx", calibrate=train_x[:256].split(64), percentile=q)
        for way, q in (("minmax", None), ("percentile", 99.99))
    }
    with torch.no_grad():
        dense = float((model(test_x).argmax(1) == test_y).float().mean())
    assert dense > 0.85
    assert sorted(p.name for p in tmp_path.iterdir()) == ["full.onnx", "minmax.onnx", "percentile.onnx"]
    for path in paths.values():
        (output,) = onnxruntime.InferenceSession(path).run(None, {"input": test_x.numpy()})
        accuracy = float((np.asarray(output).argmax(1) == test_y.numpy()).mean())
        assert accuracy >= dense - 0.02
        assert path.stat().st_size < 0.5 * full.stat().st_size


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("onnxruntime.quantization"):
            raise ImportError("no such package")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"paretorch\[export\]"):
        quantize_int8("a.onnx", str(tmp_path / "b.onnx"), [torch.zeros(1, 3)], None)


def test_a_percentile_without_batches_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="calibrate="):
        export_onnx(nn.Linear(3, 2), torch.zeros(2, 3), tmp_path / "net.onnx", percentile=99.0)
    with pytest.raises(ConfigError, match="at least one batch"):
        export_onnx(nn.Linear(3, 2), torch.zeros(2, 3), tmp_path / "net.onnx", calibrate=[])
    assert list(tmp_path.iterdir()) == []
