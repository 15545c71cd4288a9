"""`pare bench`: every file is there with its real size, the accuracy is that of the file, and nothing is measured twice."""

import json
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from paretorch import deploy, zoo
from paretorch.cli.app import app
from paretorch.cli.bench_points import Bench
from paretorch.report import report
from paretorch.training import ImageClassification, Runtime, train
from paretorch.training.recipe_values import changed, recipe_from

_DENSE = recipe_from(
    {
        "network": "digits-cnn",
        "network_options": {"width": 4},
        "data.name": "digits",
        "epochs": 2,
        "data.batch": 64,
        "optimizer.lr": 0.05,
        "optimizer.weight_decay": 5e-4,
    }
)
_OURS = {"finetune": 1, "norms": "bf16", "precision_options": {"scale": "auto"}}
_RECIPES: dict[str, dict[str, Any]] = {
    "dense": {"finetune_schedule": "through"},  # which is of no use to what comes after it
    "small": {**_OURS, "budget": 1800},
    "smaller": {**_OURS, "budget": 1400},
    "magnitude": {"finetune": 1, "pruning": "mp", "sparsity": 0.5},
    "lsq": {"quantization": "lsq", "bits": 2.0},
}


def _bench(*words: object, code: int = 0) -> Any:
    result = CliRunner().invoke(app, ["bench", *map(str, words), "--device", "cpu"], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench") / "runs"
    for name, changes in _RECIPES.items():
        train(changed(_DENSE, changes), folder / name, Runtime(device="cpu", progress="quiet"))
    return folder


@pytest.fixture(scope="module")
def benched(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out")
    _bench(runs, "--out", out)
    return out


def test_every_file_is_written_with_its_real_size(benched: Path) -> None:
    points = json.loads((benched / "bench.json").read_text())["points"]
    families = {(row["name"], row["family"]) for row in points}
    assert families == {
        ("dense", "dense fp32"),
        ("dense", "dense fp16"),
        ("dense", "int8 weights"),
        ("dense", "onnxruntime int8"),
        ("small", "paretorch, CS + SMOL"),
        ("smaller", "paretorch, CS + SMOL"),
        ("magnitude", "mp pruned, fp16 + zstd"),
        ("lsq", "lsq in our file"),
    }
    for row in points:
        assert (benched / row["file"]).stat().st_size == row["bytes"]
    sizes = {row["family"]: row["bytes"] for row in points}
    assert sizes["paretorch, CS + SMOL"] < sizes["mp pruned, fp16 + zstd"] < sizes["dense fp16"] < sizes["dense fp32"]
    assert [row["bytes"] for row in points] == sorted(row["bytes"] for row in points)


def test_accuracies_are_those_of_the_files(benched: Path, runs: Path) -> None:
    points = {(row["name"], row["family"]): row for row in json.loads((benched / "bench.json").read_text())["points"]}
    task = ImageClassification(zoo.data.load("digits"), batch=64)
    for name, family in (("dense", "dense fp32"), ("small", "paretorch, CS + SMOL")):
        measured = task.evaluate(deploy.load(runs / name / "model.pare"))["test_accuracy"]
        assert points[name, family]["accuracy"] == pytest.approx(measured)
        assert json.loads((runs / name / "result.json").read_text())["test_accuracy"] == pytest.approx(measured)


def test_the_front_is_marked_in_table_picture_and_json(benched: Path, runs: Path) -> None:
    result = _bench(runs, "--out", benched, "--json")
    told = json.loads(result.stdout)
    assert told["points"][0]["front"], "nothing is smaller than the smallest"
    lines = (benched / "bench.txt").read_text().splitlines()
    for row in told["points"]:
        (line,) = [one for one in lines if row["name"] in one.split()[:1] and row["family"] in one]
        assert line.endswith("*") == row["front"]
    root = ET.fromstring((benched / "bench.svg").read_text())
    assert "digits-cnn on digits" in root[0].text  # type: ignore[operator]
    assert f"{told['points'][0]['bytes']:,} bytes" in root[1].text  # type: ignore[operator]


def test_what_was_measured_is_not_measured_again(
    benched: Path, runs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = json.loads((benched / "bench.json").read_text())["points"]
    shutil.copytree(runs, tmp_path / "runs")
    monkeypatch.setattr(Bench, "_measured", lambda *_: pytest.fail("measured again"))
    told = json.loads(_bench(runs, "--out", benched, "--json").stdout)["points"]
    assert told == before
    (benched / "measured.json").write_text("{")  # damaged: as if nothing had been measured
    monkeypatch.undo()
    again = json.loads(_bench(runs / "small", "--out", benched, "--json").stdout)["points"]
    assert [row["accuracy"] for row in again] == [row["accuracy"] for row in before if row["name"] == "small"]


def test_a_dense_run_is_pruned_as_others_would(runs: Path, tmp_path: Path) -> None:
    words = [runs / "dense", "--prune", "0.5", "--finetune", 1, "--out", tmp_path, "--json"]
    points = {row["family"]: row for row in json.loads(_bench(*words).stdout)["points"]}
    pruned = report(tmp_path / "pruned" / "dense-mp-0.5" / "model.pare")
    assert pruned.sparsity > 0.4
    cut = deploy.load(tmp_path / "pruned" / "dense-channels-0.5" / "model.pare")
    weights = sum(weight.numel() for weight in zoo.build("digits-cnn", width=4).parameters())
    assert sum(weight.numel() for weight in cut.parameters()) < 0.65 * weights
    fp16 = points["dense fp16"]["bytes"]
    assert points["channels pruned, fp16"]["bytes"] < fp16
    assert points["mp pruned, fp16 + zstd"]["bytes"] < fp16
    for name in ("mp", "channels"):
        rows = (tmp_path / "pruned" / f"dense-{name}-0.5" / "metrics.jsonl").read_text().splitlines()
        rates = [row["lr"] for row in map(json.loads, rows) if "lr" in row]
        assert 0 < max(rates) <= _DENSE.optimizer.lr / 10, name


@pytest.mark.parametrize(("kind", "left"), [("weights", "dense-mp-0.5"), ("channels", "dense-channels-0.5")])
def test_one_kind_of_pruning_alone(runs: Path, tmp_path: Path, kind: str, left: str) -> None:
    _bench(runs / "dense", "--prune", "0.5", "--prune-by", kind, "--finetune", 1, "--out", tmp_path)
    assert [folder.name for folder in (tmp_path / "pruned").iterdir()] == [left]


def test_runs_of_one_name_are_told_apart(runs: Path, tmp_path: Path) -> None:
    for place in ("a/runs", "b/runs", "c"):
        shutil.copytree(runs / "small", tmp_path / place / "small")
    points = json.loads(_bench(tmp_path, "--out", tmp_path / "out", "--json").stdout)["points"]
    assert {row["name"] for row in points} == {"a/runs/small", "b/runs/small", "c/small"}
    assert {row["accuracy"] for row in points} == {points[0]["accuracy"]}


def test_the_run_in_this_folder_has_its_name(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs / "dense")
    points = json.loads(_bench(".", "--out", tmp_path, "--json").stdout)["points"]
    assert {row["name"] for row in points} == {"dense"}
    assert (tmp_path / "files" / "dense.fp32.safetensors").exists()


def test_artefacts_alone_need_a_data_set(runs: Path, tmp_path: Path) -> None:
    path = runs / "small" / "model.pare"
    assert "add --data" in _bench(path, "--out", tmp_path, code=2).output
    assert "paretorch" in _bench(path, "--data", "digits", "--out", tmp_path).output
    assert "choose one of digits" in _bench(path, "--data", "ptb", "--out", tmp_path, code=2).output
    deploy.save(zoo.build("resnet20"), tmp_path / "other.pare")
    told = _bench(tmp_path / "other.pare", "--data", "digits", "--out", tmp_path, code=2).output
    assert "other.pare cannot take the images of digits" in told


def test_a_file_that_cannot_hold_the_network_is_left_out(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "dense", tmp_path / "wide")
    model = deploy.load(tmp_path / "wide" / "model.pare")
    name, weight = next((name, weight) for name, weight in model.named_parameters() if weight.dim() > 1)
    weight.data.view(-1)[0] = 7e4
    deploy.save(model, tmp_path / "wide" / "model.pare")
    told = _bench(tmp_path / "wide", "--out", tmp_path / "out").output
    assert f"wide, dense fp16: left out, {name} has a value of 7e+04" in told
    families = {row["family"] for row in json.loads((tmp_path / "out" / "bench.json").read_text())["points"]}
    assert families == {"dense fp32", "int8 weights", "onnxruntime int8"}


def test_what_cannot_be_drawn_is_said_in_a_line(runs: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(runs / "dense", broken / "unfinished")
    (broken / "unfinished" / "model.pare").unlink()
    told = _bench(broken / "unfinished", code=2).output
    assert "has no artefact yet: finish it with pare train --out" in told
    assert "No run in" in _bench(broken, code=2).output
    shutil.copytree(runs / "small", broken / "small")
    assert "unfinished: not finished, left out" in _bench(broken, "--out", tmp_path / "out").output

    other = broken / "text"
    shutil.copytree(runs / "dense", other)
    config = json.loads((other / "config.json").read_text())
    config["recipe"] |= {"data": "cifar10"}
    (other / "config.json").write_text(json.dumps(config))
    assert "one picture has one data set" in _bench(runs / "dense", other, code=2).output
    told = _bench(other, "--root", tmp_path / "none", "--out", tmp_path / "nothing", code=1).output
    assert "There is no cifar-10-batches-bin" in told
    assert not (tmp_path / "nothing").exists()
    config["recipe"] |= {"data": "ptb", "network": "lstm-300"}
    (other / "config.json").write_text(json.dumps(config))
    assert "has no accuracy to draw" in _bench(other, code=2).output
    (other / "config.json").write_text("{}")
    assert "not the configuration of a run" in _bench(other, code=1).output

    (broken / "empty").mkdir()
    assert "holds no run" in _bench(broken / "empty", code=2).output
    assert "There is no" in _bench(broken / "nowhere", code=2).output
    assert "is no artefact" in _bench(runs / "small" / "report.html", "--data", "digits", code=2).output
    assert "needs a dense run" in _bench(runs / "small", "--prune", "0.5", code=2).output
    assert "above 0 and below 1" in _bench(runs / "dense", "--prune", "50", code=2).output
    words = ["--prune", "0.5", "--prune-by", "rows"]
    assert "--prune-by takes weights, channels or both, not rows" in _bench(runs / "dense", *words, code=2).output
    damaged = broken / "damaged.pare"
    damaged.write_bytes((runs / "small" / "model.pare").read_bytes()[:-9])
    assert "damaged.pare: " in _bench(damaged, "--data", "digits", "--out", tmp_path / "x", code=1).output
