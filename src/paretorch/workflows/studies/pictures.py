"""The pictures of a study: its metric over the epochs, and how alike the layers of its networks became.

A line per setting is the mean over its seeds, in a band from the least to the greatest. A similarity has a matrix per group
and run. Where layers an even number apart are alike, and those an odd number apart are not, the network runs two layers in
turn: the pattern that the thesis reports (chapter 3).
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from paretorch.errors import ConfigError
from paretorch.report.charts import Curve, curves
from paretorch.report.sharing import Matrix, write_similarities
from paretorch.support.files import read_json
from paretorch.training.progress import headline
from paretorch.workflows.studies.results import collect
from paretorch.workflows.studies.study import Study


def draw_curves(study: Study, target: Path) -> tuple[str, str]:
    """The metric's name, and the picture of what results there are of the study."""
    runs: dict[str, list[list[tuple[float, float]]]] = {}
    metric = ""
    found, _ = collect(study, target)
    for name in found:
        content = read_json(target / f"{name}.json")
        rows = [row for row in content["metrics"] if row["phase"] != "harden"]
        metric = headline(rows[-1])
        points = [(float(row["epoch"]), float(row[metric])) for row in rows if metric in row]
        runs.setdefault(name.rpartition("-seed")[0], []).append(points)
    if not runs:
        raise ConfigError(f"There are no results of {study.name} in {target.parent}: run it first")
    lines = {setting: _over_seeds(seeds) for setting, seeds in runs.items()}
    return metric, curves(study.title, lines, x_label="epoch", y_label=metric.replace("_", " "))


def _over_seeds(runs: list[list[tuple[float, float]]]) -> Curve:
    length = min(len(points) for points in runs)
    values = np.array([[value for _, value in points[:length]] for points in runs])
    return Curve([epoch for epoch, _ in runs[0][:length]], values.mean(0), values.min(0), values.max(0))


def similarities(study: Study, target: Path) -> dict[str, list[Matrix]]:
    """By run, a matrix for each group of layers, as they were at the end."""
    found: dict[str, list[Matrix]] = {}
    for name in sorted(collect(study, target)[0]):  # seeds of a setting side by side
        rows = read_json(target / f"{name}.json")["metrics"]
        kept = [row["similarities"] for row in rows if "similarities" in row]
        if kept:
            found[name] = kept[-1]
    if not found:
        raise ConfigError(f"No run of {study.name} in {target.parent} so far has layers that share")
    sizes = {name: [len(matrix) for matrix in own] for name, own in found.items()}
    first = next(iter(sizes))
    for name, own in sizes.items():
        if own != sizes[first]:
            raise ConfigError(
                f"{name} has other groups of layers than {first}: choose settings of one network by --only"
            )
    return found


def draw_similarities(study: Study, target: Path, columns: Mapping[str, Sequence[Matrix]]) -> Path:
    """A page with a picture for each group and run, of what `similarities` found."""
    groups = [["layer"] * len(matrix) for matrix in next(iter(columns.values()))]  # their names are in no result
    return write_similarities(target / "similarities.html", title=study.title, groups=groups, columns=columns)


def by_distance(matrix: Matrix) -> tuple[float, float]:
    """The mean similarity of layers an even number apart, and of those an odd number apart."""
    values = np.asarray(matrix)
    places = np.arange(len(values))
    apart = np.abs(places[:, None] - places)
    even, odd = (apart % 2 == 0) & (apart > 0), apart % 2 == 1
    return float(values[even].mean()) if even.any() else float("nan"), float(values[odd].mean())


def describe_similarities(name: str, matrices: Sequence[Matrix]) -> str:
    """One line a run; groups of two layers have none that are an even number apart."""
    pairs = [by_distance(matrix) for matrix in matrices]
    parts = (f"{'–' if math.isnan(even) else f'{even:.2f}'} / {odd:.2f}" for even, odd in pairs)
    return f"{name}: {', '.join(parts)}"
