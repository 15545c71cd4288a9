"""The benchmark of latency: what it compares, and its table, with given times."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from paretorch import zoo
from paretorch.deploy import Latency, save
from paretorch.deploy.rivals import prune_channels


@pytest.fixture
def bench() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "latency.py"
    spec = importlib.util.spec_from_file_location("latency_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_half_of_the_macs_with_channels_by_sixteen(bench: ModuleType) -> None:
    example = torch.zeros(1, 3, 32, 32)
    models = bench.candidates("resnet20", [], example)
    macs = {name: bench.macs_of(model, example) for name, model in models.items()}
    assert list(macs) == ["dense", "half the MACs", "half, any channels"]
    assert macs["half the MACs"] == pytest.approx(macs["dense"] / 2, rel=0.05)
    cut = [m.out_channels % 16 for m in models["half the MACs"].modules() if isinstance(m, torch.nn.Conv2d)]
    assert not any(cut)


def test_files_are_compared_with_their_dense_network(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = torch.zeros(2, 1, 8, 8)
    path = tmp_path / "small.pare"
    save(prune_channels(zoo.build("digits-cnn"), example, 0.5, exclude=["head"]), path)
    times = [Latency(name, "onnxruntime", ms, ms, ms, 2, 2, 1, True) for name, ms in (("dense", 3.0), (str(path), 2.0))]
    monkeypatch.setattr(bench, "measure_latency", lambda models, *_, **__: times if len(models) == 2 else [])
    record = tmp_path / "rows.json"
    arguments = [str(path), "--batch", "2", "--shape", "1", "8", "8", "--json", str(record)]
    monkeypatch.setattr(sys, "argv", ["latency.py", *arguments])
    bench.main()
    dense, small = json.loads(record.read_text())["rows"]
    assert small["macs"] < dense["macs"]
    assert small["times_dense"] == 1.5
    assert "1.50 ×" in capsys.readouterr().out


def test_one_network_at_a_time(bench: ModuleType, tmp_path: Path) -> None:
    files = [tmp_path / "a.pare", tmp_path / "b.pare"]
    save(zoo.build("digits-cnn"), files[0])
    save(zoo.build("digits-cnn", classes=4), files[1])
    with pytest.raises(SystemExit, match="several networks"):
        bench.candidates("", files, torch.zeros(1, 1, 8, 8))
