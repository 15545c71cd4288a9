"""`pare report` as a user meets it: accuracy on a data set, times beside the dense network, networks by name."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from paretorch import deploy, zoo
from paretorch.cli.app import app
from paretorch.report import measure
from paretorch.training import ImageClassification


def _report(*words: object, code: int = 0) -> Any:
    result = CliRunner().invoke(app, ["report", *map(str, words)], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


@pytest.fixture(scope="module")
def artefact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("report") / "net.pare"
    deploy.save(zoo.build("digits-cnn", width=2), path, summary={"accuracy": 0.99})
    return path


def test_accuracy_is_measured_where_a_data_set_is_named(artefact: Path) -> None:
    assert json.loads(_report(artefact, "--json").stdout)["accuracy"] == 0.99
    told = json.loads(_report(artefact, "--data", "digits", "--json").stdout)
    task = ImageClassification(zoo.data.load("digits"), batch=64)
    assert told["accuracy"] == pytest.approx(task.evaluate(deploy.load(artefact))["test_accuracy"])
    assert told["macs"] is not None, "the data set tells the shape of an input"
    assert "There is no cifar-10" in _report(artefact, "--data", "cifar10", "--root", artefact.parent, code=1).output
    assert "no image set 'ptb'" in _report(artefact, "--data", "ptb", code=2).output


def test_times_stand_beside_those_of_the_dense_network(
    artefact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = partial(deploy.measure_latency, rounds=2, seconds=0.01)
    monkeypatch.setattr(measure, "measure_latency", quick)
    page = tmp_path / "page.html"
    told = json.loads(_report(artefact, "--shape", "1,8,8", "--latency", "--json", "--html", page).stdout)
    runtimes = {entry["runtime"] for entry in told["latency"]}
    assert "torch" in runtimes
    assert {(entry["name"], entry["runtime"]) for entry in told["latency"]} == {
        (name, runtime) for name in ("net.pare", "dense") for runtime in runtimes
    }
    assert all(entry["isolated"] and entry["low_ms"] <= entry["high_ms"] for entry in told["latency"])
    timed = {(entry["name"], entry["runtime"]): entry for entry in told["latency"]}
    for runtime in runtimes:
        own, dense = timed["net.pare", runtime], timed["dense", runtime]
        apart = own["high_ms"] <= dense["low_ms"] or dense["high_ms"] <= own["low_ms"]
        assert (runtime in told["speedups"]) == apart, "a ratio between ranges that overlap would be noise"
    assert "faster than dense" in page.read_text()


def test_a_network_of_the_zoo_goes_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = json.loads(_report("resnet20", "--shape", "3,32,32", "--json").stdout)
    assert told["name"] == "resnet20"
    assert 40e6 < told["macs"] < 42e6
    assert "There is no artefact resnet21, and no network of the zoo" in _report("resnet21", code=2).output
    (tmp_path / "config.json").write_text(json.dumps({"recipe": {"data": "digits"}}))
    (tmp_path / "metrics.jsonl").write_text('{"epoch": 1, "loss": 2.0}\n{"epoch": 2, "loss": 1.0}\n')
    assert json.loads(_report("resnet20", "--json", "--html", "page.html").stdout)["macs"] is None
    assert "Training" not in Path("page.html").read_text(), "the run in this folder is not that of the network"
    (tmp_path / "run").mkdir()
    assert "pare train" not in _report("run", code=2).output, "that folder is no run"
    (tmp_path / "run" / "config.json").write_text("{}")
    assert "pare train --out run --resume" in _report("run", code=2).output


@pytest.mark.parametrize("content", [b"no rows\n", b"[]\n", b'{"epoch": 1}\n5\n', b"\xff\xfe\n"])
def test_damaged_metrics_are_told_in_a_line(artefact: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.pare").write_bytes(artefact.read_bytes())
    (tmp_path / "metrics.jsonl").write_bytes(content)
    told = _report(tmp_path, "--html", tmp_path / "page.html", code=1).output
    assert told.splitlines()[-1].startswith(f"pare: {tmp_path / 'metrics.jsonl'} ")


def test_the_page_of_a_run_has_its_name(artefact: Path, tmp_path: Path) -> None:
    run = tmp_path / "my-run"
    run.mkdir()
    (run / "model.pare").write_bytes(artefact.read_bytes())
    _report(run, "--html", tmp_path / "page.html")
    assert "<h1>my-run</h1><p>model.pare</p>" in (tmp_path / "page.html").read_text()
