"""How alike the layers of a study's networks became: a matrix a group and run, and whether it is a chessboard.

Where layers an even number apart are alike, and those an odd number apart are not, the network runs two layers in turn:
the pattern that the thesis reports (chapter 3).
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from paretorch.errors import ConfigError
from paretorch.report.sharing_pages import Matrix, write_similarities
from paretorch.support.files import read_json
from paretorch.workflows.studies.results import collect
from paretorch.workflows.studies.study import Study


def similarities(study: Study, target: Path) -> dict[str, list[Matrix]]:
    """By run, a matrix for each group of layers, as they were at the end."""
    found: dict[str, list[Matrix]] = {}
    for name in sorted(collect(study, target)[0]):  # seeds of a setting side by side
        rows = read_json(target / f"{name}.json")["metrics"]
        kept = [row["similarities"] for row in rows if "similarities" in row]
        if kept:
            found[name] = kept[-1]
    if not found:
        raise ConfigError(f"No run of {study.name} in {target.parent} so far has layers that share.")
    sizes = {name: [len(matrix) for matrix in own] for name, own in found.items()}
    first = next(iter(sizes))
    for name, own in sizes.items():
        if own != sizes[first]:
            raise ConfigError(
                f"{name} has other groups of layers than {first}: choose settings of one network by --only."
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


def told(name: str, matrices: Sequence[Matrix]) -> str:
    """One line a run; groups of two layers have none that are an even number apart."""
    pairs = [by_distance(matrix) for matrix in matrices]
    parts = (f"{'–' if math.isnan(even) else f'{even:.2f}'} / {odd:.2f}" for even, odd in pairs)
    return f"{name}: {', '.join(parts)}"
