"""The page about the optimizers: its code runs, and its equivalent settings are equivalent."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import pytest
import torch

import paretorch as pt
from paretorch.training.recipe_values import stored_recipe
from paretorch.workflows.studies import load_study

from .common import network, train, weights

PAGE = Path(__file__).parents[2] / "docs" / "optimizers.md"
PAIRS = [(torch.randn(5, 6), torch.randn(5, 3)) for _ in range(5)]
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def run(word: str, model) -> dict:
    (block,) = (block for block in BLOCKS if word in block)
    names = {"pt": pt, "torch": torch, "model": model, "criterion": torch.nn.MSELoss(), "batches": PAIRS}
    exec(block, names)
    return names


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", PAGE.read_text())
    assert targets
    assert [target for target in targets if not (PAGE.parent / target).exists()] == []


def test_first_lines_and_search() -> None:
    assert len(BLOCKS) == 4
    assert isinstance(run("drop-in", network())["optimizer"], pt.AvaGrad)
    assert run("tuning.search", network())["error"] == 0.0


def test_from_sgd() -> None:
    model, twin = network(), network()
    names = run("sgd = ", model)
    same = run("sgd = ", twin)["same"]
    train(model, names["sgd"], 5)
    train(twin, same, 5)
    torch.testing.assert_close(weights(model), weights(twin), rtol=1e-3, atol=1e-5)


def test_from_adam() -> None:
    model = network()
    names = run("adam = ", model)
    twin = copy.deepcopy(model)
    delayed = pt.DelayedAdam(twin.parameters())
    delayed.load_state_dict(copy.deepcopy(names["adam"].state_dict()))
    before = weights(model)
    train(model, names["ava"], 1, seed=9)
    train(twin, delayed, 1, seed=9)
    assert not torch.equal(before, weights(model))
    torch.testing.assert_close(weights(model), weights(twin), rtol=1e-4, atol=1e-7)


def test_every_command_of_the_page_exists() -> None:
    import typer

    from paretorch.cli.app import app
    from paretorch.workflows.studies import study_names

    page = PAGE.read_text()
    named = set(re.findall(r"pare study ([\w-]+)", page))
    assert named == {name for name in study_names() if name.startswith("optim-")}
    commands = typer.main.get_command(app).commands
    known = {option for parameter in commands["tune"].params for option in parameter.opts}
    for rest in re.findall(r"pare tune ([^`\n]*)", page):
        assert set(re.findall(r"--[a-z-]+", rest)) <= known
    for name, rest in re.findall(r"python benchmarks/(\w+)\.py([^`\n]*)", page):
        source = (PAGE.parents[1] / "benchmarks" / f"{name}.py").read_text()
        assert all(f'"{option}"' in source for option in re.findall(r"--[a-z-]+", rest)), rest


def test_the_row_of_the_lstm() -> None:
    results = PAGE.parents[1] / "results"
    settings = json.loads((results / "optim-lstm300" / "summary.json").read_text())["settings"]
    row = " · ".join(
        f"{one['mean']:.3f} ± {one['std']:.3f}" for one in (settings[n]["test_bpc"] for n in ("avagrad", "adam"))
    )
    assert f"| {row} · – · – (20 epochs, 3 seeds) |" in PAGE.read_text()
    assert [settings[name]["test_bpc"]["n"] for name in ("avagrad", "adam")] == [3, 3]


@pytest.mark.parametrize("name", ["avagrad", "adam"])
def test_the_lstm_has_the_rate_that_validation_chose(name: str) -> None:
    study = load_study("optim-lstm300-rates")
    found = {}
    for file in (PAGE.parents[1] / "results" / "optim-lstm300-rates").glob(f"{name}*-seed0.json"):
        run = json.loads(file.read_text())
        if "diverged" not in run["result"]:
            assert run["result"]["evaluated_on"] == "validation"
            recipe = stored_recipe(run["recipe"], str(file)).optimizer
            found[recipe.lr, recipe.eps] = run["result"]["test_bpc"]
    assert len(found) > 10
    final = load_study("optim-lstm300").settings[name]
    assert (final.optimizer.lr, final.optimizer.eps) == min(found, key=found.__getitem__)
    assert set(found) <= {(recipe.optimizer.lr, recipe.optimizer.eps) for recipe in study.settings.values()}
