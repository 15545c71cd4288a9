"""Networks, data and tasks of a user's own on the command line: `pare train` runs code that the command names, and no other."""

import json
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from paretorch.cli.app import app

_OWN = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

def mlp(width=8):
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3))

def loaders():
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(x, x[:, :3].argmax(1))
    return DataLoader(data, 16, shuffle=True), DataLoader(data, 32)

def loss(model, batch):
    x, y = batch
    logits = model(x)
    return F.cross_entropy(logits, y, label_smoothing=0.1), {"margin": logits.amax(1).mean()}
"""


@pytest.fixture
def mine(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A file of one's own; its name is that of the test, since modules are kept by name."""
    path = tmp_path / f"{request.node.originalname}.py"
    path.write_text(_OWN)
    return path


def _train(*words: str, code: int = 0) -> str:
    given = ["train", *words, "--device", "cpu", "--epochs", "1"]
    result = CliRunner().invoke(app, given, env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.output


def test_network_loaders_and_task(mine: Path, tmp_path: Path) -> None:
    words = ["--network", f"{mine}:mlp", "--data", f"{mine}:loaders", "--sparsity", "0.5"]
    _train(*words, "--task", f"{mine}:loss", "--out", str(tmp_path / "run"))
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["sparsity"] == pytest.approx(0.5, abs=0.05)
    assert {"test_loss", "test_margin"} <= result.keys()


def test_the_folder_has_the_short_names(mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _train("--network", f"{mine}:mlp", "--data", f"{mine}:loaders", "--network-options", "width=4")
    run = tmp_path / "runs" / f"{mine.stem}-{mine.stem}-seed0"
    assert (run / "model.pare").exists()
    assert json.loads((run / "config.json").read_text())["recipe"]["network_options"] == {"width": 4}


def test_options_of_the_network(mine: Path) -> None:
    words = ["--network", f"{mine}:mlp", "--data", f"{mine}:loaders"]
    said = _train(*words, "--network-options", "widht=4", code=2)
    assert f"--network-options: {mine}:mlp has no argument 'widht'; it has: width" in said
    said = _train(*words, "--network-options", "width", code=2)
    assert "--network-options takes NAME=VALUE, such as --network-options width=32, not 'width'" in said


def test_a_folder_of_images(tmp_path: Path) -> None:
    for label, name in enumerate("ab"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(20):
            Image.new("L", (8, 8), 100 * label + i).save(tmp_path / "photos" / name / f"{i}.png")
    words = ["--network", "digits-cnn", "--data", f"folder:{tmp_path / 'photos'}", "--batch", "8"]
    _train(*words, "--out", str(tmp_path / "run"))
    assert "test_accuracy" in json.loads((tmp_path / "run" / "result.json").read_text())


def test_code_that_only_a_file_names_is_refused(mine: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f'network = "{mine}:mlp"\ndata = "digits"')
    shown = _train("--config", str(recipe), "--out", str(tmp_path / "run"), code=2)
    assert f"add --network {mine}:mlp to run it" in shown
