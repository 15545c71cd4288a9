"""`pare shrink` as a user meets it: what is printed, what is left, and the exit code."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import paretorch as pt
from paretorch import zoo
from paretorch.cli.app import app
from paretorch.deploy.measure import stopwatch
from tests.workflows.shrink.fake_stopwatch import Fake

_OWN = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

def words():
    return "no module"

def broken():
    raise ValueError("no such thing")
"""


def _pare(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["shrink", *words], env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    return result.output


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of one small network, in three formats."""
    folder = tmp_path_factory.mktemp("weights")
    torch.manual_seed(0)
    model = zoo.build("digits-cnn", width=8)
    pt.save(model, folder / "dense.pare")
    state = {name: value.contiguous() for name, value in model.state_dict().items()}
    save_file(state, folder / "dense.safetensors")
    torch.save({"model": state, "epoch": 3}, folder / "dense.pt")
    torch.save({"epoch": 3}, folder / "other.pt")
    (folder / "mine.py").write_text(_OWN)
    return folder


_NETWORK = ["--network", "digits-cnn", "--data", "digits", "--device", "cpu", "--set", 'network_options={"width": 8}']


def test_a_network_of_the_zoo_is_shrunk_into_a_file(weights: Path, tmp_path: Path) -> None:
    out, small = tmp_path / "run", tmp_path / "small.pare"
    words = [*_NETWORK, "--weights", str(weights / "dense.safetensors"), "--budget", "1/6", "--out", str(out)]
    shown = _pare(*words, "--steps", "4", "--output", str(small))
    record = json.loads((out / "result.json").read_text())
    assert small.stat().st_size == (out / "model.pare").stat().st_size == record["bytes"] <= record["dense_bytes"] // 6
    for word in ("training 4/4", "test accuracy", "zeros", f"{record['bytes']:,} bytes", "times smaller"):
        assert word in shown
    assert isinstance(pt.load(small), torch.nn.Module)
    assert "already holds a run" in _pare(*words, "--steps", "4", code=2)
    assert f"{record['bytes']:,} bytes" in _pare(*words, "--steps", "4", "--resume", "--quiet")
    assert "another steps" in _pare(*words, "--steps", "5", "--resume", code=2)


def test_a_latency_is_met_and_shown(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopwatch, "NetworkStopwatch", Fake)
    words = [*_NETWORK, "--weights", str(weights / "dense.pare"), "--latency", "3/4", "--steps", "4"]
    shown = _pare(*words, "--out", str(tmp_path / "run"))
    record = json.loads((tmp_path / "run" / "result.json").read_text())
    assert record["milliseconds"] <= 1.05 * 0.75 * record["dense_milliseconds"]
    assert "budget" not in record
    assert "milliseconds" in shown
    assert 'write it like "5 ms"' in _pare(*words[:-4], "--latency", "5", "--out", str(tmp_path / "other"), code=2)


def test_files_of_all_formats_give_the_same(weights: Path, tmp_path: Path) -> None:
    sizes = set()
    for suffix in ("pare", "safetensors", "pt"):
        out = tmp_path / suffix
        _pare(
            *[*_NETWORK, "--weights", str(weights / f"dense.{suffix}"), "--budget", "4kB", "--steps", "0", "--quiet"],
            *["--out", str(out)],
        )
        sizes.add((out / "model.pare").read_bytes())
    assert len(sizes) == 1


def test_a_network_of_ones_own(weights: Path, tmp_path: Path) -> None:
    words = ["--network", f"{weights}/mine.py:build", "--data", "digits", "--steps", "0", "--budget", "2 KiB"]
    shown = _pare(*words, "--out", str(tmp_path / "run"), "--device", "cpu")
    assert "times smaller" in shown
    assert (tmp_path / "run" / "model.pare").stat().st_size <= 2048


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--network", "digits-cnn"], "give --weights FILE"),
        (["--weights", "missing.pt"], "there is no file missing.pt"),
        (["--weights", "other.pt"], "holds no state dict"),
        (["--weights", "mine.py"], "cannot be read as weights"),
        (["--network", "mine.py:words"], "returns str, not a module"),
        (["--network", "mine.py:broken"], "ValueError: no such thing"),
        (["--network", "missing.py:build"], "here is no file"),
        (["--network", "mine.py:build", "--weights", "dense.pt"], "does not fit the network"),
        (["--weights", "dense.pt", "--budget", "4 apples"], "is not a size"),
        (["--weights", "dense.pt", "--budget", "100"], "allow at least"),
        (["--weights", "dense.pt", "--steps", "-1"], "steps=-1"),
        (["--weights", "dense.pt", "--resume"], "holds no run to continue"),
    ],
)
def test_wrong_words_are_one_line(
    weights: Path, tmp_path: Path, words: list[str], error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(weights)
    own = any(".py:" in word for word in words)
    usual = ["--data", "digits", "--device", "cpu"] if own or "--network" in words else _NETWORK
    given = [*usual, *words, "--out", str(tmp_path / "run")]
    shown = _pare(*given, code=1 if "cannot be read" in error else 2)
    assert error in shown
    assert len(shown.strip().splitlines()) == 1


def test_a_runtime_in_place_of_a_budget(weights: Path, tmp_path: Path) -> None:
    words = [*_NETWORK, "--weights", str(weights / "dense.pare")]
    out = ["--out", str(tmp_path / "run"), "--steps", "0", "--quiet"]
    told = _pare(*words, *out, "--runtime", "openvino", "--budget", "1/10", code=2)
    assert "--budget and --runtime do not go together" in " ".join(told.split())
    _pare(*words, *out, "--runtime", "openvino")
    record = json.loads((tmp_path / "run" / "result.json").read_text())
    assert set(record["formats"]) <= {"int4", "int4x128", "int4x64", "int4x32", "int4x16"}
