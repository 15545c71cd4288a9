"""From an empty folder: a network in mine.py and a folder of pictures, trained, shrunk and reported by `pare`; and what can be wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

import paretorch as pt
from paretorch.cli.app import app
from tests.timm_package import FOLDER, import_timm

_MINE = """
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def build():
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 2))

def number():
    return 3

def narrow():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 1))

class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3 * 64, 2)

    def forward(self, x):
        return {"a": self.layer(x.flatten(1)), "b": x}

@dataclass
class Output:
    logits: torch.Tensor
    seen: torch.Tensor

class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = build()

    def forward(self, x):
        return Output(self.layers(x), x)

def pictures(labels, channels=3):
    return DataLoader(TensorDataset(torch.randn(16, channels, 8, 8), labels), 8)

def sixteen():
    return pictures(torch.arange(16)), pictures(torch.arange(16))

def late():
    return pictures(torch.zeros(16, dtype=torch.int64)), pictures(-torch.ones(16, dtype=torch.int64))

def wide():
    return pictures(torch.zeros(16, dtype=torch.int64)), pictures(torch.zeros(16, dtype=torch.int64), 5)
"""


def pare(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, [*words], env={"COLUMNS": "200", "TERM": "dumb"})
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output
    return done.output


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """mine.py and photos/: two classes of tiny pictures, of which one channel is the same everywhere."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(_MINE)
    for label, name in enumerate(("cats", "dogs")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(12):
            Image.new("RGB", (8, 8), (120 * label + i, 50, 200 - i)).save(tmp_path / "photos" / name / f"{i}.png")
    return tmp_path


def test_train_shrink_report(folder: Path) -> None:
    own = ["--network", "mine.py:build", "--data", "folder:photos", "--batch", "8", "--device", "cpu"]
    pare("train", *own, "--epochs", "2", "--lr", "0.01", "--out", "dense")
    dense = (folder / "dense" / "model.pare").stat().st_size
    pare("shrink", *own, "--weights", "dense/model.pare", "--budget", "1200", "--steps", "4", "--output", "small.pare")
    assert (folder / "small.pare").stat().st_size <= 1200 < dense
    assert "bits per weight" in pare("report", "small.pare")
    sys.path.insert(0, str(folder))
    try:
        from mine import build  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("mine", None)
    small = pt.load(folder / "small.pare", into=build())
    assert bool(torch.isfinite(small(torch.rand(2, 3, 8, 8))).all())


@pytest.mark.usefixtures("folder")
def test_a_folder_smaller_than_the_default_batch_is_used_as_it_is() -> None:
    own = ["--network", "mine.py:build", "--data", "folder:photos", "--device", "cpu"]
    assert "small" in pare("shrink", *own, "--budget", "1200", "--steps", "2")
    pare("train", *own, "--epochs", "1", "--out", "dense")


@pytest.mark.usefixtures("folder")
def test_a_network_whose_output_holds_logits() -> None:
    own = ["--network", "mine.py:Wrapped", "--data", "folder:photos", "--device", "cpu"]
    assert "accuracy" in pare("train", *own, "--epochs", "1", "--sparsity", "0.5", "--out", "run")
    assert "times smaller" in pare("shrink", *own, "--weights", "run/model.pare", "--budget", "1200", "--steps", "2")
    assert "onnxruntime" in pare("export", "run", "--network", "mine.py:Wrapped", "--data", "folder:photos")


def test_a_model_of_transformers_gets_the_classes_of_a_folder(folder: Path) -> None:
    import transformers

    config = transformers.ViTConfig(
        image_size=8, patch_size=4, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        num_labels=7, architectures=["ViTForImageClassification"],
    )  # fmt: skip
    config.save_pretrained(folder / "vit")
    own = ["--network", "hf:vit", "--data", "folder:photos", "--device", "cpu"]
    pare("train", *own, "--epochs", "1", "--bits", "4", "--out", "run")
    config.num_labels = 2
    small = pt.load(folder / "run" / "model.pare", into=transformers.ViTForImageClassification(config))
    assert small(torch.zeros(1, 3, 8, 8)).logits.shape == (1, 2)


@pytest.mark.usefixtures("folder")
def test_shrink_says_before_it_begins_what_does_not_fit() -> None:
    said = pare("shrink", "--network", "mine.py:Odd", "--data", "folder:photos", "--out", "run", code=2)
    assert "mine.py:Odd gives dict for images of folder:photos: return logits" in said
    assert not Path("run").exists()


@pytest.mark.usefixtures("folder")
def test_searches_judge_by_a_tenth_of_a_folder() -> None:
    own = ["--network", "mine.py:build", "--data", "folder:photos", "--device", "cpu", "--batch", "4", "--epochs", "1"]
    pare("tune", *own, "--trials", "1", "--alphas", "0.1", "--epsilons", "0.1")
    assert Path("runs/tune-avagrad-mine-photos/tuning.json").exists()
    pare("tickets", *own, "--method", "cs", "--rounds", "1", "--quiet")
    assert Path("runs/tickets-mine-photos").is_dir()


_VIT = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}


def test_networks_of_timm(folder: Path) -> None:
    timm = import_timm()
    options = [word for name, value in _VIT.items() for word in ("--network-options", f"{name}={value}")]
    vit = ["--network", "timm:vit_tiny_patch16_224", *options]
    own = ["--data", "folder:photos", "--batch", "8", "--device", "cpu"]
    assert "sparsity 50.00 %" in pare("train", *vit, *own, "--epochs", "1", "--sparsity", "0.5", "--out", "run")
    small = pt.load(
        folder / "run" / "model.pare", into=timm.create_model("vit_tiny_patch16_224", num_classes=2, **_VIT)
    )
    weights = torch.cat([each.weight.flatten() for each in small.modules() if isinstance(each, nn.Linear | nn.Conv2d)])
    assert int((weights == 0).sum()) == len(weights) // 2
    pare("shrink", *vit, *own, "--weights", "run/model.pare", "--budget", "1/3", "--steps", "2", "--output", "s.pare")
    assert (folder / "s.pare").stat().st_size < (folder / "run" / "model.pare").stat().st_size

    said = pare("train", "--network", "timm:vit_huge", *own, "--epochs", "1", code=2)
    assert "--network timm:vit_huge cannot be built: Unknown model (vit_huge)" in said
    said = pare("train", "--network", "timm:resnet10t", "--network-options", "depht=1", *own, "--epochs", "1", code=2)
    assert "--network timm:resnet10t cannot be built: " in said
    assert "'depht'" in said


@pytest.mark.usefixtures("folder")
@pytest.mark.skipif(not FOLDER.is_dir(), reason="torchvision fits torch here")
def test_a_torchvision_that_does_not_fit_torch() -> None:
    words = [sys.executable, "-m", "paretorch.cli", "train", "--network", "timm:resnet10t", "--data", "folder:photos"]
    paths = os.pathsep.join([str(FOLDER), *sys.path])
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False)
    said = " ".join(done.stderr.split())
    assert done.returncode == 2, said
    assert "--network timm:resnet10t: timm cannot be imported (operator torchvision::nms does not exist)" in said
    assert f"install the torchvision that was built for torch {torch.__version__}" in said


@pytest.mark.parametrize(
    ("network", "data", "said"),
    [
        ("mine.py:number", "folder:photos", "--network mine.py:number returns int, not a module"),
        ("mine.py:nowhere", "folder:photos", "mine.py has no function 'nowhere'"),
        ("mine.py:narrow", "folder:photos", "mine.py:narrow gives 1 classes, and folder:photos has labels up to 1"),
        ("mine.py:Odd", "folder:photos", "mine.py:Odd gives dict for images of folder:photos: return logits"),
        (
            "mine.py:build",
            "mine.py:sixteen",
            "mine.py:build on --data mine.py:sixteen: there is the label 2, and the model gives 2 classes, 0 to 1",
        ),
        ("mine.py:build", "mine.py:late", "mine.py:build on --data mine.py:late: there is the label -1, and the model"),
        ("mine.py:build", "mine.py:wide", "mine.py:build cannot take a batch of --data mine.py:wide: RuntimeError: "),
        ("mine.py:build", "folder:empty", "--data: empty has no classes"),
        ("mine.py:build", "folder:alone", "--data folder:alone: there is one class, 'cats'"),
        ("mine.py:build", "folder:broken", "dogs/3.png is not a readable image; replace or delete it"),
        ("mine.py:build", "folder:nowhere", "--data folder:nowhere: there is no folder nowhere"),
    ],
)
def test_one_sentence_names_the_file_or_the_option(folder: Path, network: str, data: str, said: str) -> None:
    (folder / "empty").mkdir()
    (folder / "alone").mkdir()
    (folder / "broken").mkdir()
    for where, names in (("alone", ["cats"]), ("broken", ["cats", "dogs"])):
        for name in names:
            (folder / where / name).mkdir()
            for picture in (folder / "photos" / name).iterdir():
                (folder / where / name / picture.name).write_bytes(picture.read_bytes())
    (folder / "broken" / "dogs" / "3.png").write_text("no image")
    words = ["train", "--network", network, "--data", data, "--task", "classify", "--epochs", "1", "--batch", "8"]
    done = CliRunner().invoke(app, [*words, "--out", "run"], env={"COLUMNS": "200"})
    assert done.exit_code in (1, 2), done.output
    assert said in done.output
    assert done.output.strip().count("\n") == 0
    assert not (folder / "run" / "model.pare").exists()


def test_a_batch_larger_than_the_folder(folder: Path) -> None:
    said = pare("train", "--network", "mine.py:build", "--data", "folder:photos", "--batch", "100", code=2)
    assert "give --batch 20 or fewer" in said
