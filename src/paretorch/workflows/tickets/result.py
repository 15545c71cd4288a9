"""What a ticket search came to: every ticket, and of each method the sparsest matching and the best performing one.

A ticket *matches* when, retrained, it is at least as accurate as the dense network of its seed. Both are chosen by the
validation split; the accuracy on the test set stands beside it and decides nothing.
"""

from dataclasses import dataclass
from statistics import fmean
from typing import Any

from paretorch.workflows.tickets.files import Row
from paretorch.workflows.tickets.storage import Storage


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
    """dense: the dense network of each seed. tickets: one row a round of each search."""

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
