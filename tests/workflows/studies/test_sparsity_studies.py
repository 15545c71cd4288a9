"""The sparsity studies on a tiny setting: every method runs, subsets run, and results are enough to go on from."""

import json
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paretorch import ContinuousSparsification
from paretorch.cli.app import app
from paretorch.errors import ConfigError
from paretorch.training import Recipe, Runtime, train
from paretorch.training.folder import read_history
from paretorch.training.recipe import PRUNING
from paretorch.training.recipe_values import changed
from paretorch.workflows.studies import load_study, run_study, study_names

# The thesis compares these; RigL came later.
COMPARED = [method for method in PRUNING if method != "rigl"]
_TINY = {
    "network": "digits-cnn",
    "network_options": {"width": 4},
    "data": "digits",
    "validation": 200,
    "epochs": 1,
    "finetune": 1,
}


@pytest.mark.parametrize("name", ["sparsity-resnet20", "sparsity-vgg16"])
def test_every_method_is_there_with_the_same_number_of_runs(name: str) -> None:
    study = load_study(name)
    counts = Counter(study.family(setting) for setting in study.settings)
    assert counts.pop("dense") == 1
    assert set(counts) == set(COMPARED)
    assert len(set(counts.values())) == 1
    for recipe in study.settings.values():
        assert recipe.epochs + recipe.finetune == 200
        assert recipe.data.validation == 5000


@pytest.mark.parametrize("name", ["sparsity-resnet20", "sparsity-vgg16"])
@pytest.mark.parametrize("method", ["dense", *COMPARED])
def test_every_method_of_the_studies_runs(tmp_path: Path, name: str, method: str) -> None:
    study = load_study(name, _TINY).only([method])
    setting, recipe = list(study.settings.items())[-1]
    if method == "amc":
        recipe = changed(recipe, {"compression.sparsity_options": {"episodes": 2, "warmup": 1}})
    result = train(recipe, tmp_path, Runtime(device="cpu", progress="quiet"))
    assert "final_test_accuracy" in result
    if method != "dense":
        # Right after rounding: soft thresholds (str) may zero a few more while fine-tuning.
        (rounded,) = [row for row in read_history(tmp_path) if row["phase"] == "harden"]
        assert rounded["sparsity"] == pytest.approx(float(setting.split("-")[1]), abs=1e-3)
        assert {"soft_accuracy", "hard_accuracy"} <= set(result)


@pytest.mark.parametrize("name", ["sparsity-lambda", "sparsity-beta", "sparsity-init"])
def test_the_knobs_are_varied_one_at_a_time(tmp_path: Path, name: str) -> None:
    study = load_study(name, {key: value for key, value in _TINY.items() if key != "sparsity_options"})
    knob = {"lambda": "penalty", "beta": "final_temperature", "init": "init"}[name.split("-")[1]]
    for family in dict.fromkeys(study.families.values()):
        options = [dict(one.compression.sparsity_options) for one in study.only([family]).settings.values()]
        values = [one.pop(knob) for one in options]
        assert len(set(values)) == len(values) >= 5
        assert all(one == options[0] for one in options)
    recipe = next(iter(study.settings.values()))
    result = train(recipe, tmp_path, Runtime(device="cpu", progress="quiet"))
    assert 0 <= result["sparsity"] < 1


def test_the_printed_study_has_the_printed_algorithm() -> None:
    study = load_study("sparsity-printed")
    for setting, recipe in study.only(["printed"]).settings.items():
        given = dict(recipe.compression.sparsity_options)
        drops = tuple(epoch / recipe.epochs for epoch in recipe.schedule.milestones)
        rate = recipe.optimizer.lr
        expected = ContinuousSparsification.as_printed(
            given["init"], lr=rate, drops=drops, momentum=recipe.optimizer.momentum
        )
        assert {name: getattr(expected, name) for name in given} == {**given, "drops": tuple(given["drops"])}, setting
        assert recipe.compression.sparsity is None
        assert not recipe.optimizer.nesterov
    assert len(study.only(["printed"]).settings) == 4


def test_the_printed_tickets_drop_the_rate_of_masks_with_that_of_the_weights() -> None:
    study = load_study("sparsity-tickets-printed")
    ((_, recipe),) = study.settings.items()
    (table,) = study.tickets
    wanted = [epoch / recipe.epochs for epoch in recipe.schedule.milestones]
    assert table["options"]["drops"] == pytest.approx(wanted, abs=1e-6)
    assert (table["options"]["anneal"], table["options"]["rescale"]) == (1.0, False)


def _narrow(recipe: Recipe) -> Recipe:
    """By single channels: the network for digits is narrower than the blocks of a runtime."""
    return (
        changed(recipe, {"compression.sparsity_options": {**recipe.compression.sparsity_options, "multiple": 1}})
        if recipe.compression.pruning
        else recipe
    )


@pytest.mark.parametrize("name", ["sparsity-channels-resnet20", "sparsity-channels-vgg16"])
def test_channels_really_go(tmp_path: Path, name: str) -> None:
    # In bf16, as on a GPU: what is compressed is looked at in the precision of the weights.
    study = load_study(name, {**_TINY, "dtype": "bf16"})
    runtime = Runtime(device="cpu", progress="quiet")
    dense, small = (train(_narrow(recipe), tmp_path / each, runtime) for each, recipe in study.settings.items())
    assert small["macs"] == pytest.approx(dense["macs"] / 2, rel=0.15)
    assert small["macs"] == small["macs_kept"]


def test_a_subset_is_run_kept_and_added_to(tmp_path: Path) -> None:
    study = replace(load_study("sparsity-resnet20", _TINY), seeds=(0,))
    told: list[str] = []
    places = {"results": tmp_path / "results", "runs": tmp_path / "runs"}
    run = {**places, "options": ["--device", "cpu"], "log": told.append}
    first = run_study(study, only=["dense", "gmp-0.9"], **run)  # type: ignore[arg-type]
    assert list(first["settings"]) == ["dense", "gmp-0.9"]
    assert [line[:5] for line in told] == ["[1/2]", "[2/2]"]
    shutil.rmtree(tmp_path / "runs")
    second = run_study(study, only=["dense", "gmp-0.9", "mp-0.5"], **run)  # type: ignore[arg-type]
    assert list(second["settings"]) == ["dense", "gmp-0.9", "mp-0.5"]
    assert [line.split(": ")[1] for line in told[2:4]] == ["done before"] * 2
    assert not (tmp_path / "runs" / "sparsity-resnet20" / "dense-seed0").exists()
    assert {row["method"] for row in second["within 2 points of dense"]} == {"gmp", "mp"}

    words = ["study", "sparsity-resnet20", "--table", "--seeds", "0", "--out", str(tmp_path / "results")]
    for name, value in _TINY.items():
        words += ["--set", f"{name}={json.dumps(value)}"]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    assert "The sparsest within 2 points of dense" in shown.output
    assert "mp-0.5" in shown.output
    shown = CliRunner().invoke(app, [*words, "--layers", "--only", "gmp-0.9,mp-0.5"])
    assert shown.exit_code == 0, shown.output
    assert "gmp-0.9" in shown.output
    assert "features.3" in shown.output
    shown = CliRunner().invoke(app, [*words[:3], *words[5:7]])  # of the real recipe there is nothing
    assert shown.exit_code == 2
    assert "no results of sparsity-resnet20" in shown.output


def test_the_page_names_every_study_and_no_other() -> None:
    page = (Path(__file__).parents[3] / "docs" / "sparsity.md").read_text()
    named = set(re.findall(r"sparsity-[a-z0-9-]*[a-z0-9]", page)) | {
        "sparsity-beta",
        "sparsity-init",
        "sparsity-imp-rate",
    }
    assert named == {name for name in study_names() if name.startswith("sparsity-")}
    assert all(f"| `{name}` |" in page for name in PRUNING)


def test_patterns_that_match_nothing_are_named() -> None:
    with pytest.raises(ConfigError, match=r"No setting .* matches 'gpm'; there are: dense, cs, gmp"):
        load_study("sparsity-resnet20").only(["cs", "gpm"])
    assert list(load_study("sparsity-resnet20").only(["*-0.955"]).settings) == [
        f"{name}-0.955" for name in ("cs", "gmp", "st3", "dnw", "str")
    ]
