"""A study's metric over the epochs: a line a setting, the mean over its seeds, in a band from the least to the greatest."""

from pathlib import Path

import numpy as np

from paretorch.errors import ConfigError
from paretorch.report.charts import Curve, curves
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
        raise ConfigError(f"There are no results of {study.name} in {target.parent}: run it first.")
    lines = {setting: _over_seeds(seeds) for setting, seeds in runs.items()}
    return metric, curves(study.title, lines, x_label="epoch", y_label=metric.replace("_", " "))


def _over_seeds(runs: list[list[tuple[float, float]]]) -> Curve:
    length = min(len(points) for points in runs)
    values = np.array([[value for _, value in points[:length]] for points in runs])
    return Curve([epoch for epoch, _ in runs[0][:length]], values.mean(0), values.min(0), values.max(0))
