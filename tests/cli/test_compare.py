"""`pare compare`: several runs on one page, from their own records."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from paretorch import deploy
from paretorch.cli.app import app
from paretorch.training import Runtime, train
from paretorch.training.recipe_values import recipe_from


def compare(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["compare", *map(str, words)], env={"COLUMNS": "200"})
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output
    return done.output


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two finished runs, one that was stopped, and a file."""
    folder = tmp_path_factory.mktemp("compare")
    options = {"network": "digits-cnn", "network_options": {"width": 2}, "data": "digits", "epochs": 3, "batch": 256}
    for name, more in (("dense", {}), ("small<b>", {"compression.sparsity": 0.8})):
        recipe = recipe_from({**options, **more})
        train(recipe, folder / name, Runtime(device="cpu", progress="quiet"))
    stopped = shutil.copytree(folder / "dense", folder / "stopped")
    for name in ("result.json", "model.pare"):
        (stopped / name).unlink()
    torch.manual_seed(0)
    deploy.save(nn.Linear(100, 10), folder / "mine.pare", summary={"accuracy": 0.25})
    return {name: folder / name for name in ("dense", "small<b>", "stopped", "mine.pare")}


def test_the_page(runs: dict[str, Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    told = compare(*runs.values(), "--html", page)
    html = page.read_text()
    results = {name: json.loads((runs[name] / "result.json").read_text()) for name in ("dense", "small<b>")}
    for name, result in results.items():
        assert f"{result['test_accuracy']:.2%}" in html
        assert f"{result['bytes']:,} bytes" in html
        assert re.search(rf"{re.escape(name)}.*{result['bytes']:,}.*{result['test_accuracy']:.2%}", told)
    assert "stopped is not finished" in told
    assert "Not in the picture, without a file or an accuracy: stopped." in html
    assert "small&lt;b&gt;" in html
    assert "small<b>" not in html
    accuracy = curve(html, "Test accuracy")
    assert accuracy.count('<path d="M') == 3  # one line per run; the file has none
    sparsity = curve(html, "Sparsity")
    assert sparsity.count('<path d="M') == 1
    assert len(re.findall(r'transform="translate', html)) == 2 * 2 - 1 + 2  # three points, and two kinds in the legend
    assert "<script" not in html
    assert not re.search(r'(src|href)="(?!data:)', html)


def curve(html: str, title: str) -> str:
    (card,) = re.findall(rf"<h3>{title}</h3>(<svg.*?</svg>)", html)
    return str(card)


def test_names_of_one_last_part(runs: dict[str, Path], tmp_path: Path) -> None:
    for where in ("a", "b"):
        shutil.copytree(runs["dense"], tmp_path / where / "run")
    told = compare(tmp_path / "a" / "run", tmp_path / "b" / "run", "--html", tmp_path / "page.html")
    assert "a/run" in told
    assert "b/run" in told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["no-such-run"], "no-such-run is not there: give run folders"),
        (["."], "holds no run: give a folder with metrics.jsonl or model.pare"),
        (["dense", "./dense"], "a run is given twice"),
    ],
)
def test_what_is_no_run(
    words: list[str], said: str, runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(runs["dense"], tmp_path / "dense")
    monkeypatch.chdir(tmp_path if words != ["."] else Path(tempfolder(tmp_path)))
    assert said in compare(*words, code=2)
    assert not Path("compare.html").exists()


def tempfolder(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"


def test_a_damaged_record(runs: dict[str, Path], tmp_path: Path) -> None:
    broken = shutil.copytree(runs["dense"], tmp_path / "broken")
    (broken / "config.json").write_text("[]")
    assert "config.json is not the configuration of a run" in compare(broken, "--html", tmp_path / "p.html", code=1)
    (broken / "metrics.jsonl").write_text("{\n")
    said: Any = compare(broken, "--html", tmp_path / "p.html", code=1)
    assert "metrics.jsonl is damaged" in said
