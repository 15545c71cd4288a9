"""Ticket searches over the seeds: of each method the sparsest matching and the best performing ticket, and the epochs spent.

Both tickets are those of each seed (see `paretorch.workflows.tickets.result`): measured against the dense network of that
seed, chosen by the validation accuracy. A seed in which nothing matches counts in no mean of the sparsest matching; how
many seeds do stands beside.
"""

from collections.abc import Sequence
from typing import Any

from paretorch.deploy.measure.text import table as aligned
from paretorch.workflows.studies.results import spread
from paretorch.workflows.tickets.result import Result

Row = dict[str, Any]
_TOLD = ("sparsity", "accuracy", "test_accuracy", "search_epochs", "epochs")
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
    told = " over the seeds, mean ± standard deviation" if many else ""
    head = ["method", "ticket", "sparsity", "validation", "test", "epochs", "in all", "seeds"]
    return [f"Of each method{told}, chosen by the validation accuracy:", *aligned([head, *rows])]


def _over(rows: Sequence[Row]) -> Row | None:
    """Mean and spread of what is told of a ticket; a dense network has no epochs of search."""
    if not rows:
        return None
    return {name: spread([row[name] for row in rows]) for name in _TOLD if name in rows[0]}


def _cells(one: Row) -> list[str]:
    return [*(_percent(one[name]) for name in ("sparsity", "accuracy", "test_accuracy")), _number(one["epochs"])]


def _percent(one: Row) -> str:
    spread_text = f" ± {100 * one['std']:.2f}" if one["n"] > 1 else ""
    return f"{100 * one['mean']:.2f}{spread_text} %"


def _number(one: Row) -> str:
    spread_text = f" ± {one['std']:,.0f}" if one["n"] > 1 else ""
    return f"{one['mean']:,.0f}{spread_text}"
