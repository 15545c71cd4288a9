"""A run's metrics as charts: loss and accuracy together with their test values, every other metric by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from paretorch.report.charts import line_chart, plain
from paretorch.report.tables import label

_TOGETHER = ("loss", "accuracy")
_FIRST = ("loss", "accuracy", "sparsity", "bits")
_NOT_SHOWN = {"epoch", "step", "seconds"}


def history_charts(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return title and SVG of every chart that the rows of metrics.jsonl allow."""
    axis = "epoch" if any("epoch" in row for row in rows) else "step" if any("step" in row for row in rows) else ""
    series: dict[str, list[tuple[float, float]]] = {}
    marks: list[tuple[float, str]] = []
    phase: Any = None
    for position, row in enumerate(rows):
        x = row.get(axis, position)
        if not _is_number(x):
            continue
        if phase is not None and row.get("phase", phase) != phase:
            marks.append((float(x), str(row["phase"])))
        phase = row.get("phase", phase)
        for key, value in row.items():
            if key not in _NOT_SHOWN and _is_number(value):
                series.setdefault(key, []).append((float(x), float(value)))
    charts = []
    for number, (title, keys) in enumerate(_grouped(series).items()):
        chosen = {label(key): series[key] for key in keys}
        form = _percent if title.endswith(("accuracy", "sparsity")) else plain
        heading = label(title)
        svg = line_chart(f"history-{number}", heading, chosen, x_label=axis or "row", marks=_last(marks), form=form)
        charts.append((heading, svg))
    return charts


def _grouped(series: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, list[str]]:
    """Return the keys of each chart, for all metrics that have two points or more and change."""
    groups: dict[str, list[str]] = {}
    for key, points in series.items():
        if len(points) < 2 or len({y for _, y in points}) < 2:
            continue
        title = next((word for word in _TOGETHER if key == word or key.endswith(f"_{word}")), key)
        groups.setdefault(title, []).append(key)
    order = sorted(groups, key=lambda title: _FIRST.index(title) if title in _FIRST else len(_FIRST))
    return {title: groups[title] for title in order}


def _last(marks: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Keep the last mark of phases that begin at once (harden, then fine-tuning)."""
    return [(x, word) for x, word in dict(reversed(marks)).items()][::-1]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _percent(value: float) -> str:
    return f"{100 * value:.4g} %"
