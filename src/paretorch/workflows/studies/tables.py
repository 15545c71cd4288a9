"""The tables of a study: how sparse each method gets within some points of the dense network, or what its settings cost.

A method is a family of settings, one for each sparsity. Of these the sparsest is taken whose *validation* accuracy, averaged over
the seeds, is at most `points` below that of the dense network of the same recipe. The table shows its *test* accuracy,
which chose nothing, and the number of runs that a method spent on being chosen from.

Tables of settings show what few bits cost (those that were asked for, those that papers count, and those that the file
takes), what sharing saves, or each setting's metric, beside that of the dense network. Nothing is chosen there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from paretorch.support.text import table as aligned
from paretorch.training.progress import format_metric, headline
from paretorch.training.recipe import Recipe
from paretorch.workflows.studies.results import Found, runs_of, spread, summarize
from paretorch.workflows.studies.study import Study

_CHOSEN, _FINAL = "test_accuracy", "final_test_accuracy"  # the first is over the validation images of the run
_SLACK = 1e-9  # so that exactly `points` below is within, whatever the rounding


@dataclass(frozen=True)
class Point:
    """A setting over its seeds: accuracies and sparsities are shares, `asked` is None where there was no target.

    rounding: the largest change of accuracy by rounding, over the runs.
    """

    setting: str
    family: str
    asked: float | None
    sparsity: float
    validation: float
    test: float
    test_std: float
    rounding: float | None
    seeds: int


@dataclass(frozen=True)
class Verdict:
    """The sparsest point of a method within the allowed loss (None: no point is), and the runs it was chosen from."""

    family: str
    point: Point | None
    runs: int


def points_of(study: Study, found: Found) -> list[Point]:
    """Every setting that has results, in the order of the study; none where runs have no held-out images to choose by."""
    settings = {setting: rows for setting in study.settings if (rows := runs_of(study, setting, found))}
    every = [row for rows in settings.values() for row in rows]
    if any(row.get("evaluated_on") != "validation" or _CHOSEN not in row for row in every):
        return []
    return [_point(study, setting, rows) for setting, rows in settings.items()]


def _point(study: Study, setting: str, rows: Sequence[dict[str, Any]]) -> Point:
    test = spread([row[_FINAL] for row in rows])
    changes = [abs(row["hard_accuracy"] - row["soft_accuracy"]) for row in rows if "hard_accuracy" in row]
    return Point(
        setting=setting,
        family=study.family(setting),
        asked=study.settings[setting].compression.sparsity,
        sparsity=fmean(row.get("sparsity", 0.0) for row in rows),
        validation=fmean(row[_CHOSEN] for row in rows),
        test=test["mean"],
        test_std=test["std"],
        rounding=max(changes, default=None),
        seeds=len(rows),
    )


def dense_point(study: Study, points: Sequence[Point]) -> Point | None:
    """The setting that compresses nothing."""
    return next((point for point in points if not study.settings[point.setting].compresses), None)


def verdicts(study: Study, points: Sequence[Point], allowed: float = 0.02) -> list[Verdict]:
    """For each method, its sparsest point with a validation accuracy of at least that of the dense one less `allowed`.

    Empty where no dense network has been trained.
    """
    dense = dense_point(study, points)
    if dense is None:
        return []
    least = dense.validation - allowed - _SLACK
    found = []
    for family in dict.fromkeys(point.family for point in points if point.family != dense.family):
        own = [point for point in points if point.family == family]
        within = [point for point in own if point.validation >= least]
        best = max(within, key=lambda point: point.sparsity, default=None)
        found.append(Verdict(family, best, sum(point.seeds for point in own)))
    return found


def show_points(points: Sequence[Point]) -> list[str]:
    """All settings, a line each."""
    head = ["setting", "asked", "sparsity", "validation", "test", "by rounding", "seeds"]
    return aligned([head, *([point.setting, *_cells(point)] for point in points)])


def show_verdicts(study: Study, points: Sequence[Point], allowed: float = 0.02) -> list[str]:
    """The dense network, and a line for each method; a note where methods were not given as many runs."""
    dense, found = dense_point(study, points), verdicts(study, points, allowed)
    if dense is None or not found:
        return []
    head = ["method", "asked", "sparsity", "validation", "test", "by rounding", "seeds", "runs"]
    rows = [[dense.family, *_cells(dense), str(dense.seeds)]]
    for verdict in found:
        cells = ["–"] * 6 if verdict.point is None else _cells(verdict.point)
        rows.append([verdict.family, *cells, str(verdict.runs)])
    lines = [f"The sparsest within {100 * allowed:g} points of dense, chosen by the validation accuracy:"]
    lines += aligned([head, *rows])
    if len({verdict.runs for verdict in found}) > 1:
        lines.append("Not every method has had as many runs: one with more had more to be chosen from.")
    return lines


def show_layers(study: Study, found: Found) -> list[str]:
    """The sparsity of each layer, or its bits where precisions are given, a column for each setting, averaged over the seeds.

    Empty if no run has them.
    """
    columns: dict[str, list[dict[str, float]]] = {}
    forms: dict[str, str] = {}
    for setting, recipe in study.settings.items():
        rows = runs_of(study, setting, found)
        counts_bits = recipe.compression.quantization_method is not None
        key = "layer_bits" if counts_bits and any("layer_bits" in row for row in rows) else "layers"
        if numbers := [row[key] for row in rows if key in row]:
            columns[setting] = numbers if key == "layer_bits" else [_percents(row) for row in numbers]
            forms[setting] = "{:.2f}" if key == "layer_bits" else "{:.2f} %"
    if not columns:
        return []
    names = dict.fromkeys(name for rows in columns.values() for row in rows for name in row)
    body = [
        [
            name.removesuffix(".weight"),
            *(forms[setting].format(fmean(row.get(name, 0.0) for row in rows)) for setting, rows in columns.items()),
        ]
        for name in names
    ]
    return aligned([["layer", *columns], *body])


def _percents(row: dict[str, float]) -> dict[str, float]:
    return {name: 100 * value for name, value in row.items()}


def as_rows(study: Study, points: Sequence[Point], allowed: float = 0.02) -> list[dict[str, Any]]:
    """The verdicts as plain values, for summary.json."""
    return [
        {"method": verdict.family, "runs": verdict.runs, **({} if verdict.point is None else vars(verdict.point))}
        for verdict in verdicts(study, points, allowed)
    ]


def _cells(point: Point) -> list[str]:
    spread_text = f" ± {100 * point.test_std:.2f}" if point.seeds > 1 else ""
    return [
        "–" if point.asked is None else f"{100 * point.asked:.2f} %",
        f"{100 * point.sparsity:.2f} %",
        f"{100 * point.validation:.2f} %",
        f"{100 * point.test:.2f}{spread_text} %",
        "–" if point.rounding is None else f"{100 * point.rounding:.2f}",
        str(point.seeds),
    ]


Numbers = dict[str, dict[str, float]]
"""Mean and spread by the name of the number, as `summarize` gives them."""


def mean(numbers: Numbers, name: str, form: str) -> str:
    """The mean of a number over the seeds; a dash where there is none."""
    return form.format(numbers[name]["mean"]) if name in numbers else "–"


def with_spread(metric: str, one: dict[str, float]) -> str:
    """The mean of a metric, with its standard deviation where there is more than one seed."""
    return format_metric(metric, one["mean"]) + (f" ± {format_metric(metric, one['std'])}" if one["n"] > 1 else "")


def distance(metric: str, numbers: Numbers, dense: Numbers | None) -> str:
    """How far the mean of a metric is from that of the dense network."""
    if dense is None:
        return "–"
    lost = numbers[metric]["mean"] - dense[metric]["mean"]
    return ("+" if lost >= 0 else "−") + format_metric(metric, abs(lost)).removesuffix(" %")


_FROM_START = ("smol-printed", "bsq")  # their `bits` are those at the start: λ decides where they end
_HEAD = ["setting", "asked", "bits", "on disk", "bytes", "", "to dense", "seeds"]


def show_bits(study: Study, found: Found) -> list[str]:
    """A line for each setting with results; none where no network of the study has fewer bits."""
    settings: dict[str, Numbers] = summarize(study, found)["settings"]
    if not any("bits" in numbers for numbers in settings.values()):
        return []
    metric = headline(next(iter(settings.values())))
    dense = next((numbers for name, numbers in settings.items() if not study.settings[name].compresses), None)
    rows = [[name, *_bits_cells(study.settings[name], numbers, metric, dense)] for name, numbers in settings.items()]
    return aligned([[word or metric.replace("_", " ") for word in _HEAD], *rows])


def _bits_cells(recipe: Recipe, numbers: Numbers, metric: str, dense: Numbers | None) -> list[str]:
    asked = None if recipe.compression.quantization in _FROM_START else recipe.compression.bits
    return [
        "–" if asked is None else f"{asked:g}",
        mean(numbers, "bits", "{:.3f}"),
        mean(numbers, "bits_on_disk", "{:.3f}"),
        mean(numbers, "bytes", "{:,.0f}"),
        with_spread(metric, numbers[metric]),
        distance(metric, numbers, dense) if recipe.compresses else "–",
        f"{numbers[metric]['n']:g}",
    ]


def show_sharing(study: Study, found: Found) -> list[str]:
    """A line for each setting with results; none where no network of the study shares."""
    settings: dict[str, Numbers] = summarize(study, found)["settings"]
    if not any(study.settings[name].shares for name in settings):
        return []
    metric = headline(next(iter(settings.values())))
    rows = [["setting", "parameters", "bytes", metric.replace("_", " "), "to dense", "seeds"]]
    for name, numbers in settings.items():
        recipe = study.settings[name]
        # With the same options: a network with dropout is held against the dense one with dropout.
        alike = [one for one, own in study.settings.items() if own.network_options == recipe.network_options]
        dense = next((settings[one] for one in alike if one in settings and not study.settings[one].compresses), None)
        apart = distance(metric, numbers, dense) if recipe.compresses else "–"
        sizes = [mean(numbers, size, "{:,.0f}") for size in ("parameters", "bytes")]
        rows.append([name, *sizes, with_spread(metric, numbers[metric]), apart, f"{numbers[metric]['n']:g}"])
    return aligned(rows)


def show_metric(study: Study, found: Found) -> list[str]:
    """A line for each setting with results; the validation part stands first, since choices are made by it."""
    settings: dict[str, Numbers] = summarize(study, found)["settings"]
    if not settings:
        return []
    metric = headline(next(iter(settings.values())))
    held_out = any(row.get("evaluated_on") == "validation" for row in found.values())
    columns = {metric.replace("test_", "validation ", 1): metric} if held_out else {}
    columns[metric.replace("_", " ")] = f"final_{metric}" if held_out else metric
    rows = [["setting", *columns, "seeds"]]
    for name, numbers in settings.items():
        cells = [with_spread(metric, numbers[one]) if one in numbers else "–" for one in columns.values()]
        rows.append([name, *cells, f"{numbers[metric]['n']:g}"])
    return aligned(rows)
