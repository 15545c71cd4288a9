"""Studies of ticket searches: the tables [[tickets]] of a study, as `pare tickets` takes them, all in one folder.

Several workers share the folder and may be killed; the same command goes on. Every ticket's row, the plot, and the summary
with mean and spread over the seeds go to results/<study>.

Of each method the tables have the sparsest matching and the best performing ticket of each seed (see
`paretorch.workflows.tickets.result`): measured against the dense network of that seed, chosen by the validation accuracy. A
seed in which nothing matches counts in no mean of the sparsest matching; how many seeds do stands beside.
"""

import math
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paretorch.errors import PareError
from paretorch.support.text import table as aligned
from paretorch.workflows.queue import Engine, LocalEngine
from paretorch.workflows.studies.results import heading, read_stored, require_recipe, spread, write_json
from paretorch.workflows.studies.study import Study
from paretorch.workflows.tickets.jobs import require_done, run_units
from paretorch.workflows.tickets.result import Result, collect, write_result
from paretorch.workflows.tickets.search import make_searches
from paretorch.workflows.tickets.storage import NEEDED, Storage, read_records

_ROWS, _SUMMARY, _PLOTS = "tickets.jsonl", "summary.json", ("tickets.svg", "layers.svg")


def run_tickets(
    study: Study,
    results: Path,
    runs: Path,
    *,
    engine: Engine | None = None,
    minutes: float | None = None,
    options: Sequence[str] = (),
    log: Callable[[str], None] = print,
) -> None:
    """Do what is not yet done of the study's searches and write the results.

    engine: what runs them; None: one process at a time. minutes: after these, searches keep the steps they have taken and end;
    what tickets there are is written. options: further words for every `pare tickets`, such as ("--device", "cpu").
    """
    end = math.inf if minutes is None else time.monotonic() + 60 * minutes
    folder, target = runs / study.name, results / study.name
    (recipe,) = study.settings.values()
    stored, _ = read_stored(target / _SUMMARY)
    if stored is not None:
        require_recipe(replace(recipe, seed=stored.seed), stored, target / _SUMMARY)  # seeds belong to the searches
    source = f"the study {study.name}"
    tables = [{"seeds": list(study.seeds), **table} for table in study.tickets]
    storage = Storage.join(folder, recipe, [one for table in tables for one in make_searches(table, source)])
    ends = run_units(storage, engine or LocalEngine(1), options, until=end, log=log)
    if collect(storage).tickets:
        _keep(study, storage, target)
    require_done(ends)
    if ends.late:
        raise PareError(f"{', '.join(ends.late)} not finished in {minutes} minutes; the same command goes on")


def _keep(study: Study, storage: Storage, target: Path) -> None:
    """Write the results: every row that there is, and the summary of the study's own seeds."""
    every = collect(storage)
    write_result(storage, every, shlex.join(["pare", *sys.argv[1:]]))
    target.mkdir(parents=True, exist_ok=True)
    for name in (_ROWS, *_PLOTS):
        if (storage.path / name).exists():  # layers are drawn where there are several methods
            shutil.copyfile(storage.path / name, target / name)
    own = result_of([*every.dense, *every.tickets], study.seeds)
    recipe = storage.recipe.as_dict()
    summary = {**heading(study), "recipe": recipe, "methods": by_method(own), **own.as_dict()}
    write_json(target / _SUMMARY, summary)


def ticket_lines(study: Study, target: Path) -> list[str]:
    """The tickets in a folder of results, a line each, and what they say of each method; none where there are none."""
    path = target / _ROWS
    if not path.exists():
        return []
    result = result_of(read_records(path, NEEDED, lines=True), study.seeds)
    return [*show_tickets(result), "", *show_methods(result)] if result.tickets else []


Row = dict[str, Any]
_SHOWN = ("sparsity", "accuracy", "test_accuracy", "search_epochs", "epochs")
_TICKETS = {"sparsest_matching": "sparsest matching", "best_performing": "best performing"}


def result_of(rows: Sequence[Row], seeds: Sequence[int]) -> Result:
    """What the rows of tickets.jsonl say of these seeds."""
    own = [row for row in rows if row["seed"] in seeds]
    dense = [row for row in own if row["method"] == "dense"]
    return Result(dense, [row for row in own if row["method"] != "dense"])


def by_method(result: Result) -> dict[str, Any]:
    """Mean and spread over the seeds, for summary.json; of a ticket that no seed has, None.

    epochs: of a ticket those of its own run, with retraining; of a method those of all its runs.
    """
    found = result.found()
    methods = {}
    for method in dict.fromkeys(one.method for one in found):
        own = [one for one in found if one.method == method]
        methods[method] = {
            "sparsest_matching": _over([one.sparsest for one in own if one.sparsest is not None]),
            "best_performing": _over([one.best for one in own]),
            "epochs": spread([one.epochs for one in own]),
        }
    return methods


def show_tickets(result: Result) -> list[str]:
    """All tickets, a line each."""
    head = ["search", "round", "sparsity", "validation", "test", "epochs"]
    shares = ("sparsity", "accuracy", "test_accuracy")
    body = [
        [row["search"], str(row["round"]), *(f"{100 * row[name]:.2f} %" for name in shares), str(row["epochs"])]
        for row in (*result.dense, *result.tickets)
    ]
    return aligned([head, *body])


def show_methods(result: Result) -> list[str]:
    """The dense network, and two lines for each method; spreads where there is more than one seed."""
    methods, rows = by_method(result), []
    if dense := _over(result.dense):
        rows.append(["dense", "–", *_cells(dense), _number(dense["epochs"]), str(dense["epochs"]["n"])])
    for method, one in methods.items():
        spent = one["epochs"]
        for key, name in _TICKETS.items():
            ticket = one[key]
            count = 0 if ticket is None else ticket["epochs"]["n"]
            seeds = str(count) if count == spent["n"] else f"{count} of {spent['n']}"
            cells = ["–"] * 4 if ticket is None else _cells(ticket)
            rows.append([method, name, *cells, _number(spent), seeds])
    many = any(one["epochs"]["n"] > 1 for one in methods.values())
    over_seeds = " over the seeds, mean ± standard deviation" if many else ""
    head = ["method", "ticket", "sparsity", "validation", "test", "epochs", "in all", "seeds"]
    return [f"Of each method{over_seeds}, chosen by the validation accuracy:", *aligned([head, *rows])]


def _over(rows: Sequence[Row]) -> Row | None:
    """Mean and spread of what the table shows of a ticket; a dense network has no epochs of search."""
    if not rows:
        return None
    return {name: spread([row[name] for row in rows]) for name in _SHOWN if name in rows[0]}


def _cells(one: Row) -> list[str]:
    return [*(_percent(one[name]) for name in ("sparsity", "accuracy", "test_accuracy")), _number(one["epochs"])]


def _percent(one: Row) -> str:
    spread_text = f" ± {100 * one['std']:.2f}" if one["n"] > 1 else ""
    return f"{100 * one['mean']:.2f}{spread_text} %"


def _number(one: Row) -> str:
    spread_text = f" ± {one['std']:,.0f}" if one["n"] > 1 else ""
    return f"{one['mean']:,.0f}{spread_text}"
