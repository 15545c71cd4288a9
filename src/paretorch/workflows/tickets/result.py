"""What a ticket search gave: every ticket, and of each method the sparsest matching and the best performing one; its files.

A ticket *matches* when, retrained, it is at least as accurate as the dense network of its seed. Both are chosen by the
validation split; the accuracy on the test set stands beside it and decides nothing. The files are raw rows, a summary, and
pictures (accuracy against sparsity, the weights that each layer keeps).
"""

import json
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from paretorch.report.charts import line_chart
from paretorch.report.markup import in_report_colours
from paretorch.training.files import write_atomically
from paretorch.workflows.tickets.storage import Row, Storage


@dataclass(frozen=True)
class Found:
    """The two tickets that sum a method up, of one seed; `epochs`: all that its searches have trained."""

    method: str
    seed: int
    sparsest: Row | None
    best: Row
    epochs: int


@dataclass(frozen=True)
class Result:
    """dense: the dense network of each seed. tickets: one row per round of each search."""

    dense: list[Row]
    tickets: list[Row]

    def found(self) -> list[Found]:
        """By method and seed."""
        keys = dict.fromkeys((row["method"], row["seed"]) for row in self.tickets)
        return [self._found(method, seed) for method, seed in keys]

    def _found(self, method: str, seed: int) -> Found:
        rows = [row for row in self.tickets if (row["method"], row["seed"]) == (method, seed)]
        bar = next((row["accuracy"] for row in self.dense if row["seed"] == seed), None)
        matching = [row for row in rows if bar is not None and row["accuracy"] >= bar]
        last = {row["search"]: row["epochs"] for row in rows}
        return Found(
            method,
            seed,
            max(matching, key=lambda row: (row["sparsity"], row["accuracy"]), default=None),
            max(rows, key=lambda row: (row["accuracy"], row["sparsity"])),
            sum(last.values()),
        )

    def curves(self) -> dict[str, list[tuple[float, float]]]:
        """Points (sparsity, accuracy), averaged over the seeds.

        Of a method with one setting all its rounds, of a method with several the last round of each: the curve that its
        parallel runs make together.
        """
        made = {}
        for method in dict.fromkeys(row["method"] for row in self.tickets):
            points: dict[tuple[str, int], list[Row]] = {}
            for row in self.tickets:
                if row["method"] == method:
                    points.setdefault((row["search"].rpartition("-seed")[0], row["round"]), []).append(row)
            settings = {setting for setting, _ in points}
            last = {each: max(number for setting, number in points if setting == each) for each in settings}
            chosen = [
                rows for (setting, number), rows in points.items() if len(settings) == 1 or number == last[setting]
            ]
            made[method] = sorted(
                (fmean(row["sparsity"] for row in rows), fmean(row["accuracy"] for row in rows)) for rows in chosen
            )
        return made

    def as_dict(self) -> dict[str, Any]:
        """What is written as summary.json."""
        return {
            "dense": self.dense,
            "found": [
                {
                    "method": one.method,
                    "seed": one.seed,
                    "sparsest_matching": one.sparsest and _brief(one.sparsest),
                    "best_performing": _brief(one.best),
                    "epochs": one.epochs,
                }
                for one in self.found()
            ],
        }


def collect(storage: Storage) -> Result:
    """What is done so far."""
    units = storage.units()
    dense = [row for unit in units if unit.search is None for row in unit.rows()]
    return Result(dense, [row for unit in units if unit.search is not None for row in unit.rows()])


def _brief(row: Row) -> Row:
    return {key: value for key, value in row.items() if key != "layers"}


def write_result(storage: Storage, result: Result, command: str) -> None:
    """tickets.jsonl (raw), summary.json and tickets.svg, in the storage; layers.svg where there are several methods."""
    with storage.alone():
        rows = "".join(json.dumps(row) + "\n" for row in (*result.dense, *result.tickets))
        write_atomically(storage.path / "tickets.jsonl", rows.encode())
        summary = {"command": command, "recipe": storage.recipe.as_dict(), **result.as_dict()}
        write_atomically(storage.path / "summary.json", (json.dumps(summary, indent=1) + "\n").encode())
        write_atomically(storage.path / "tickets.svg", draw(result).encode())
        if compared := alike(result):
            write_atomically(storage.path / "layers.svg", draw_layers(compared).encode())


def draw(result: Result) -> str:
    """One line a method, and the dense network as a level; there must be a ticket."""
    series = {
        # A path of one point is invisible, one of two equal points is a dot.
        method: [(100 * sparsity, 100 * accuracy) for sparsity, accuracy in (points if len(points) > 1 else 2 * points)]
        for method, points in result.curves().items()
    }
    if result.dense:
        level = 100 * fmean(row["accuracy"] for row in result.dense)
        far = max(x for points in series.values() for x, _ in points)
        series = {"dense": [(0.0, level), (far, level)], **series}
    plot = line_chart(
        "tickets",
        "Accuracy of retrained tickets",
        series,
        x_label="sparsity in per cent (accuracy on the validation split)",
        form=lambda value: f"{value:.4g} %",
    )
    return in_report_colours(plot)


def alike(result: Result) -> list[Row]:
    """A ticket of each method, of one seed, as near to each other in sparsity as there are; empty for a single method.

    Of choices whose sparsities are within the same whole point of each other, the sparsest.
    """
    methods = list(dict.fromkeys(row["method"] for row in result.tickets))
    found: list[tuple[tuple[int, float], list[Row]]] = []
    for first in (row for row in result.tickets if row["method"] == methods[0] and len(methods) > 1):
        chosen = [first]
        for method in methods[1:]:
            rows = [row for row in result.tickets if (row["method"], row["seed"]) == (method, first["seed"])]
            if rows:
                chosen.append(min(rows, key=lambda row: abs(row["sparsity"] - first["sparsity"])))
        if len(chosen) == len(methods):
            sparsities = [row["sparsity"] for row in chosen]
            found.append(((int(100 * (max(sparsities) - min(sparsities))), -first["sparsity"]), chosen))
    return min(found, key=lambda one: one[0])[1] if found else []


def draw_layers(rows: list[Row]) -> str:
    """The share of each layer's weights that each ticket keeps, as an SVG file that stands alone; at least one row."""
    series = {
        f"{row['method']}, {100 * row['sparsity']:.1f} % zeros": [
            (float(number), 100 * kept) for number, kept in enumerate(row["layers"].values(), start=1)
        ]
        for row in rows
    }
    plot = line_chart(
        "layers",
        "Weights that the tickets keep, by layer",
        series,
        x_label="layer, from the input to the output",
        form=lambda value: f"{value:.4g} %",
    )
    return in_report_colours(plot)
