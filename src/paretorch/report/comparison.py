"""Several runs on one page: their numbers side by side, accuracy against bytes, and every curve with a line for each run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from paretorch.report.charts import line_chart, plain
from paretorch.report.markup import is_number, label, percent, shorten, table, write_page
from paretorch.report.pareto import Point, chart, on_front

_NOT_DRAWN = {"epoch", "step", "seconds"}
_FIRST = ("test_accuracy", "accuracy", "test_loss", "loss", "sparsity", "bits")
_LONGEST = 40  # characters of a name in a legend


@dataclass(frozen=True)
class Run:
    """What is compared.

    Args:
        name: Unique among the runs.
        kind: What the marks of the picture tell apart, such as the name of the network.
        rows: Of metrics.jsonl; empty for a file alone.
        numbers: What the run came to, by name: `accuracy` and `sparsity` are fractions, `bytes` a count. Those of a run that is
            not finished are missing.
    """

    name: str
    kind: str
    rows: Sequence[Mapping[str, Any]] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)


def points_of(runs: Sequence[Run]) -> list[Point]:
    """Return the runs that have bytes and an accuracy, as points of the picture."""
    return [
        Point(run.name, run.kind, int(run.numbers["bytes"]), float(run.numbers["accuracy"]))
        for run in runs
        if is_number(run.numbers.get("bytes")) and is_number(run.numbers.get("accuracy"))
    ]


def write_comparison(path: str | os.PathLike[str], runs: Sequence[Run]) -> Path:
    """Write the page and return its path."""
    title = f"{len(runs)} runs compared"
    names = ", ".join(run.name for run in runs)
    sections = [f"<header><h1>{title}</h1><p>{escape(names)}</p></header><main>", _numbers(runs), _pareto(runs)]
    sections += [_curves(runs), "</main>", _foot()]
    return write_page(path, title, sections)


def _numbers(runs: Sequence[Run]) -> str:
    points = points_of(runs)
    front = {point.name for point, best in zip(points, on_front(points), strict=True) if best}
    rows = [
        {"run": run.name, "kind": run.kind, **run.numbers, "on the front": "yes" if run.name in front else "–"}
        for run in runs
    ]
    return f"<section><h2>Results</h2>{table('What each run came to; – where it has no such number', rows)}</section>"


def _pareto(runs: Sequence[Run]) -> str:
    points = points_of(runs)
    if not points:
        said = "<p>No run has both a file and an accuracy yet.</p>"
    else:
        picture = chart("Accuracy against bytes on disk", points)
        said = f'<figure class="card">{picture}</figure>'
        if left := [run.name for run in runs if run.name not in {point.name for point in points}]:
            said += f"<p>Not in the picture, without a file or an accuracy: {escape(', '.join(left))}.</p>"
    return f"<section><h2>Accuracy against bytes</h2>{said}</section>"


def _curves(runs: Sequence[Run]) -> str:
    axis = "epoch" if all("epoch" in row for run in runs for row in run.rows) else "step"
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for run in runs:
        for row in run.rows:
            for key, value in row.items():
                if key not in _NOT_DRAWN and is_number(value) and is_number(row.get(axis)):
                    own = found.setdefault(key, {}).setdefault(shorten(run.name, _LONGEST), [])
                    own.append((float(row[axis]), float(value)))
    cards = []
    order = sorted(found, key=lambda key: _FIRST.index(key) if key in _FIRST else len(_FIRST))
    for number, key in enumerate(order):
        lines = {name: values for name, values in found[key].items() if len(values) > 1}
        if len({y for values in lines.values() for _, y in values}) < 2:
            continue
        heading = label(key)
        form = percent if key.endswith(("accuracy", "sparsity")) else plain
        svg = line_chart(f"curves-{number}", heading, lines, x_label=axis, form=form)
        cards.append(f'<div class="card"><h3>{escape(heading[:1].upper() + heading[1:])}</h3>{svg}</div>')
    return f'<section><h2>Curves</h2><div class="grid">{"".join(cards)}</div></section>' if cards else ""


def _foot() -> str:
    return (
        "<footer><p>Bytes are those of model.pare; 1 kB is 1000 bytes. Sparsity and bits are over the weights that each run has decided on; "
        "bits on disk over all weights, with masks and maps. A run is on the front if no other is as small and as accurate, and better in "
        "one of the two.</p></footer>"
    )
