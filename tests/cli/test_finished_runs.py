"""Networks and data of a user's own in the commands that take finished runs, and in those that start processes."""

import json
from pathlib import Path

import datasets
import pytest
import torch
import transformers
from safetensors.torch import save_file
from typer.testing import CliRunner

from paretorch.cli.app import app

_OWN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def layer(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())

def build(width=8):
    last = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 2))
    return nn.Sequential(layer(3, width), layer(width, width), layer(width, width), *last)

def regressor():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 1), nn.Flatten(0))

def loaders():
    x = torch.randn(64, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(x, (x.mean((1, 2, 3)) > 0).long())
    return DataLoader(data, 16, shuffle=True), DataLoader(data, 32)

def numbers():
    x = torch.randn(64, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(x, x.mean((1, 2, 3)))
    return DataLoader(data, 16, shuffle=True), DataLoader(data, 32)
"""
NETWORK = ["--network", "own_runs.py:build"]
BOTH = [*NETWORK, "--data", "own_runs.py:loaders"]


def pare(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, [*words], env={"COLUMNS": "200", "TERM": "dumb"})
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output
    return done.output


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense run, one with masks, one that shares, and one of regression, all of own_runs.py."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_runs.py").write_text(_OWN)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train = ["train", *BOTH, "--epochs", "1", "--device", "cpu"]
        pare(*train, "--out", "dense")
        pare(*train, "--out", "small", "--sparsity", "0.5", "--weights", "dense/model.pare")
        pare(*train, "--out", "shared", "--set", "sharing_options.templates=2")
        regress = ["--network", "own_runs.py:regressor", "--data", "own_runs.py:numbers", "--task", "regress"]
        pare("train", *regress, "--epochs", "1", "--device", "cpu", "--out", "regress")
    return folder


@pytest.fixture
def here(runs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(runs)
    return runs


def test_a_run_begins_with_weights_and_its_numbers_are_those_of_its_file(here: Path) -> None:
    result = json.loads((here / "small" / "result.json").read_text())
    assert result["bytes"] == (here / "small" / "model.pare").stat().st_size
    assert json.loads((here / "small" / "config.json").read_text())["recipe"]["start"] == "dense/model.pare"
    assert "Everything is whole" in pare("check", "small")


@pytest.mark.usefixtures("here")
def test_report() -> None:
    assert "MACs" not in pare("report", "small").split("layer")[0].replace("MACs             not", "")
    told = json.loads(pare("report", "small", *NETWORK, "--json"))
    assert told["macs_kept"] < told["macs"]
    assert 0 <= json.loads(pare("report", "small/model.pare", *BOTH, "--json"))["accuracy"] <= 1
    said = pare("report", "regress", "--network", "own_runs.py:regressor", "--data", "own_runs.py:numbers")
    assert "test loss: " in said
    assert "MACs" in pare("report", "own_runs.py:build", "--shape", "3,8,8", "--network-options", "width=4")


def test_report_of_weights(here: Path) -> None:
    from own_runs import build  # type: ignore[import-not-found]  # the file is on the path since the runs

    save_file(build(width=4).state_dict(), here / "weights.safetensors")
    words = ["weights.safetensors", *NETWORK, "--network-options", "width=4", "--shape", "3,8,8"]
    assert "MACs" in pare("report", *words)
    assert "weights.onnx: " in pare("export", *words)
    said = pare("report", "weights.safetensors", *NETWORK, "--shape", "3,8,8", code=2)
    assert "weights.safetensors does not fit the network: 0.0.weight is (4, 3, 3, 3) there and (8, 3, 3, 3)" in said


def test_export(here: Path) -> None:
    said = pare("export", "small", *BOTH, "small.onnx")
    assert "test accuracy on own_runs.py:loaders: " in said
    assert (here / "small.onnx").exists()
    assert "INT8" in pare("export", "dense", *BOTH, "dense.onnx", "--int8", "--images", "16")
    pare("export", "small/model.pare", "shape.onnx", *NETWORK, "--data", "own_runs.py:loaders")


def test_bench(here: Path) -> None:
    words = ["--prune", "0.5", "--finetune", "1", "--device", "cpu"]
    said = pare("bench", "dense", "small", *BOTH, *words)
    points = json.loads((here / "bench" / "bench.json").read_text())["points"]
    assert {one["family"] for one in points} >= {
        "dense fp32",
        "onnxruntime int8",
        "paretorch, CS",
        "channels pruned, fp16",
    }
    assert "left out" not in said
    other = ["--network", "own_runs.py:regressor", "--data", "own_runs.py:numbers", "--out", "other"]
    assert "regress has no accuracy to draw: own_runs.py:numbers is not classified" in pare(
        "bench", "regress", *other, code=2
    )


def test_fold(here: Path) -> None:
    said = pare("fold", "shared", *BOTH, "--layers", "1", "--device", "cpu")
    assert "2 layers are 1" in said
    assert (here / "shared" / "folded.pare").exists()


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "command", ["fold shared", "bench small --out again", "export small", "report small --latency"]
)
def test_code_of_a_run_is_run_only_if_the_command_line_names_it(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paretorch.zoo.user_code._allowed", set())
    assert "is code, and this command line does not name it: add --" in pare(*command.split(), code=2)


def test_a_lone_file_needs_the_name_of_its_network(here: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone.pare"
    alone.write_bytes((here / "small" / "model.pare").read_bytes())
    assert "bits per weight" in pare("report", str(alone))
    for command in ("report", "export"):
        said = pare(command, str(alone), "--shape", "3,8,8", code=2)
        assert "alone.pare names no network of the zoo: add --network FILE.py:FUNCTION" in said


def test_jobs_of_studies_and_tickets_trust_what_the_command_line_named(here: Path) -> None:
    (here / "mine.toml").write_text(
        'title = "mine"\nclaim = "a claim"\nseeds = [0]\n[recipe]\nnetwork = "own_runs.py:build"\n'
        'data = "own_runs.py:loaders"\nepochs = 1\n'
    )
    assert "run" in pare("study", "mine.toml", *BOTH, "--device", "cpu")
    (here / "photos").mkdir()
    for name, grey in (("cats", 0), ("dogs", 200)):
        (here / "photos" / name).mkdir()
        for i in range(20):
            from PIL import Image

            Image.new("RGB", (8, 8), (grey, grey, i)).save(here / "photos" / name / f"{i}.png")
    words = ["--data", "folder:photos", "--epochs", "1", "--rounds", "1", "--validation", "4", "--batch", "8"]
    assert "sparsest matching" in pare("tickets", *NETWORK, *words, "--device", "cpu", "--parallel", "1")
    assert "Recommended" in pare("tune", *NETWORK, *words[:4], *words[6:], "--trials", "1", "--device", "cpu")


def test_networks_of_transformers_and_tables_of_datasets(here: Path) -> None:
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=8, num_labels=2,
    )  # fmt: skip
    transformers.BertForSequenceClassification(config).save_pretrained(here / "bert")
    tokens = torch.randint(30, (32, 6), generator=torch.Generator().manual_seed(0)).tolist()
    rows = {"input_ids": tokens, "attention_mask": [[1] * 6] * 32, "label": [row[0] % 2 for row in tokens]}
    part = datasets.Dataset.from_dict(rows)
    datasets.DatasetDict({"train": part, "test": part}).save_to_disk(str(here / "table"))
    own = ["--network", "hf:bert", "--data", "hf:table", "--batch", "16", "--device", "cpu"]
    assert "test accuracy" in pare("train", *own, "--epochs", "1", "--bits", "4", "--out", "bits")
    assert "MACs" in pare("report", "bits", "--network", "hf:bert")
    pare("shrink", *own, "--budget", "1/3", "--steps", "2", "--output", "bert.pare")
    assert (here / "bert.pare").stat().st_size < (here / "bert" / "model.safetensors").stat().st_size / 3
    assert "in onnxruntime" in pare("export", "bits", *own[:4], "bert.onnx")
