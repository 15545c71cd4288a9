"""Studies of ticket searches: readable by `pare tickets`, run by workers, kept under results."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from paretorch.cli.app import app
from paretorch.errors import ConfigError, PareError
from paretorch.workflows.studies import load_study, study_names
from paretorch.workflows.studies.results import spread
from paretorch.workflows.studies.study import parse_study
from paretorch.workflows.studies.tickets import run_tickets, ticket_lines
from paretorch.workflows.tickets import METHODS, make_method, make_searches

_NAMES = [name for name in study_names() if load_study(name).tickets]

_SMALL = """
title = "Digits"
claim = "it runs"
seeds = [0, 1]
[recipe]
network = "digits-cnn"
network_options = {width = 4}
data = "digits"
validation = 200
epochs = 1
[[tickets]]
method = "imp"
rate = 0.5
rounds = 1
[[tickets]]
method = "cs"
rounds = 1
"""


@pytest.mark.parametrize("name", _NAMES)
def test_every_search_has_a_method_that_takes_its_options(name: str) -> None:
    study = load_study(name, {"epochs": 3})
    (recipe,) = study.settings.values()
    assert recipe.data.validation
    assert not recipe.compresses
    assert recipe.epochs == 3
    for table in study.tickets:
        methods = table["method"] if isinstance(table["method"], list) else [table["method"]]
        for method in methods:
            own = METHODS[method].varies
            values = table.get(own, [])
            for value in values if isinstance(values, list) else [values]:
                make_method(method, {own: value, **table.get("options", {})}).check()
        assert set(table) <= {"method", "rounds", "init", "rate", "store", "rewind", "options", "vary"}
    searches = [one for table in study.tickets for one in make_searches({"seeds": [0], **table}, name)]
    assert len({one.name for one in searches}) == len(searches), "each has a folder of its own"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The results of the small study, and what was told while it ran."""
    folder, told = tmp_path_factory.mktemp("study"), list[str]()
    run_tickets(
        parse_study("small", _SMALL),
        folder / "results",
        folder / "runs",
        options=["--device", "cpu"],
        log=told.append,
    )
    return folder / "results" / "small", told


def test_a_study_of_tickets_leaves_rows_summary_and_plot(done: tuple[Path, list[str]]) -> None:
    target, told = done
    assert [line.split(":")[0] for line in told] == [
        "[1/6] dense-seed0",
        "[2/6] dense-seed1",
        "[3/6] cs-init0-seed0",
        "[4/6] cs-init0-seed1",
        "[5/6] imp-rate0.5-seed0",
        "[6/6] imp-rate0.5-seed1",
    ]
    assert {path.name for path in target.iterdir()} == {"tickets.jsonl", "summary.json", "tickets.svg", "layers.svg"}
    assert [row["method"] for row in _rows(target)] == ["dense", "dense", "cs", "cs", "imp", "imp"]
    summary = json.loads((target / "summary.json").read_text())
    assert (summary["study"], summary["seeds"], summary["recipe"]["epochs"]) == ("small", [0, 1], 1)
    assert [(one["method"], one["seed"]) for one in summary["found"]] == [("cs", 0), ("cs", 1), ("imp", 0), ("imp", 1)]


def test_mean_and_spread_over_the_seeds_are_told_by_method(done: tuple[Path, list[str]]) -> None:
    target, _ = done
    methods = json.loads((target / "summary.json").read_text())["methods"]
    assert list(methods) == ["cs", "imp"]
    for method, one in methods.items():
        found = [row["test_accuracy"] for row in _rows(target) if row["method"] == method]
        assert one["best_performing"]["test_accuracy"] == spread(found)
        assert one["epochs"] == spread([2, 2])
    lines = ticket_lines(parse_study("small", _SMALL), target)
    assert len(lines) == (2 + 6) + 1 + (1 + 2 + 1 + 2 * 2)
    assert "50.00 %" in lines[7]
    assert "50.00 ± 0.00 %" in lines[-1]


def test_the_table_is_of_the_seeds_that_are_asked_for(done: tuple[Path, list[str]]) -> None:
    study, target = parse_study("small", _SMALL), done[0]
    alone = ticket_lines(replace(study, seeds=(1,)), target)
    assert len(alone) == (2 + 3) + 1 + (1 + 2 + 1 + 2 * 2)
    assert not any("seed0" in line or "±" in line for line in alone)
    assert ticket_lines(replace(study, seeds=(7,)), target) == []


def test_results_of_another_recipe_are_not_replaced(done: tuple[Path, list[str]], tmp_path: Path) -> None:
    target, _ = done
    before = (target / "summary.json").read_bytes()
    with pytest.raises(ConfigError, match=r"epochs \(there 1, now 2\).*remove the file"):
        run_tickets(parse_study("small", _SMALL, {"epochs": 2}), target.parent, tmp_path / "runs")
    assert (target / "summary.json").read_bytes() == before
    assert not (tmp_path / "runs").exists()


def _rows(target: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (target / "tickets.jsonl").read_text().splitlines()]


def test_what_time_is_left_for_is_done_and_the_rest_another_time(tmp_path: Path) -> None:
    study = parse_study("small", _SMALL)
    study = replace(study, seeds=(0,), tickets=study.tickets[:1])
    places = {"results": tmp_path / "results", "runs": tmp_path / "runs", "options": ["--device", "cpu"]}
    with pytest.raises(PareError, match=r"dense-seed0, .* not finished in 0\.0 minutes; the same command goes on"):
        run_tickets(study, **places, minutes=0.0)  # type: ignore[arg-type]
    assert not (tmp_path / "results").exists()
    run_tickets(study, **places, minutes=5.0, log=lambda line: None)  # type: ignore[arg-type]
    assert [row["method"] for row in _rows(tmp_path / "results" / "small")] == ["dense", "imp"]


def test_a_search_that_fails_is_told(tmp_path: Path) -> None:
    study = parse_study("small", _SMALL.replace('"imp"', '"pim"'))
    with pytest.raises(PareError, match="pim"):
        run_tickets(study, tmp_path / "results", tmp_path / "runs", options=["--device", "cpu"])


def test_the_command_says_what_it_cannot_do(tmp_path: Path) -> None:
    words = ["study", "sparsity-imp-rate", "--out", str(tmp_path)]
    for more, message in (
        (["--table"], "no results of sparsity-imp-rate"),
        (["--only", "imp"], "no settings"),
        (["--layers"], "use --table"),
        (["--curves"], "use --table"),
    ):
        shown = CliRunner().invoke(app, [*words, *more])
        assert shown.exit_code == 2
        assert message in shown.output
