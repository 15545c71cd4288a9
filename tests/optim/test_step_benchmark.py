"""The timing table of a step: its cases are what they say, all optimizers are timed, mistakes are one line."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from tests.workflows.tuning.test_grid_benchmark import load

step = load("optimizer_step")
training = load("optimizer_training")
replay = load("optimizer_replay")


def run(module, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr("sys.argv", ["benchmark", *words])
    module.main()


def test_the_small_case_is_resnet20() -> None:
    from paretorch import zoo

    shapes = step.resnet20_shapes()
    assert len(shapes) == 65
    assert {shape for shape in shapes if len(shape) == 4} >= {
        p.shape for p in zoo.build("resnet20").parameters() if p.dim() == 4
    }


def test_a_table_with_ratios(tmp_path: Path, monkeypatch, capsys) -> None:
    words = ["--case", "even", "--params", "3K", "--tensors", "3", "--rounds", "2", "--calls", "1", "--device", "cpu"]
    run(step, monkeypatch, *words, "--only", "AvaGrad", "Adam foreach", "--json", str(tmp_path / "rows.json"))
    assert "3 tensors" in capsys.readouterr().out
    rows = json.loads((tmp_path / "rows.json").read_text())["cases"]["even"]
    assert [row["optimizer"] for row in rows] == ["AvaGrad", "Adam foreach"]
    assert rows[1]["ratio"] == 1.0
    assert all(math.isfinite(row["ms"]) and len(row["times"]) == 2 for row in rows)


@pytest.mark.contract
def test_each_optimizer_trains_in_a_process_of_its_own(tmp_path: Path, monkeypatch, capsys) -> None:
    words = ["--width", "8", "--depth", "2", "--batch", "2", "--steps", "1", "--rounds", "1", "--pruned", "0.5"]
    run(training, monkeypatch, *words, "--only", "AvaGrad", "Adam foreach", "--json", str(tmp_path / "rows.json"))
    assert "training, 50% of the weights pruned" in capsys.readouterr().out
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [row["optimizer"] for row in rows] == ["AvaGrad", "Adam foreach"]
    assert {row["parameters"] for row in rows} == {2 * (8 * 8 + 8 + 16) + 8 * 10 + 10}


def test_pruned_weights_have_no_gradient() -> None:
    model = training.network(16, 2, 0.75)
    model(torch.randn(4, 16)).square().sum().backward()
    for block in list(model)[:2]:
        weight = block[0].weight
        assert bool((weight.grad[weight == 0] == 0).all())
        assert 0.5 < (weight == 0).float().mean() < 0.95


def test_mistakes(monkeypatch, capsys, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        run(step, monkeypatch, "--only", "Nonsense")
    assert "no 'Nonsense' here, only AvaGrad" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run(training, monkeypatch, "--pruned", "1")
    assert "1 is no share of the weights" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run(replay, monkeypatch, str(tmp_path / "nothing.json"))
    assert "give the file that optimizer_grid.py --json wrote" in capsys.readouterr().err
