"""How `pare tune` tells of itself: a line or a bar for each setting, the files it leaves, and what it recommends."""

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import typer

from paretorch.cli.bar import epochs_bar
from paretorch.cli.tune_trial import Trial, exactly
from paretorch.deploy.codec.container import write_file
from paretorch.errors import PareError
from paretorch.report.curves import Curve, curves
from paretorch.report.picture import save
from paretorch.workflows.tuning.plots import STEPS, heat_map

if TYPE_CHECKING:
    from paretorch.workflows.tuning import Found


@contextlib.contextmanager
def watched(trial: Trial, count: int, *, quiet: bool) -> Iterator[Callable[["Found", float, float], None]]:
    """A function to tell a setting once it is tried, of so many; on a terminal with a bar over the epochs of all."""
    if quiet:
        yield lambda found, alpha, eps: write(found, trial)
        return
    with epochs_bar() as bar:

        def tell(found: "Found", alpha: float, eps: float) -> None:
            write(found, trial)
            line = f"[{len(found.order)}/{count}] {_told(found, trial, alpha, eps)}"
            if bar is None:
                typer.echo(line)
            else:
                bar.tell(line)
                bar.watch(len(found.order) * trial.recipe.epochs, count * trial.recipe.epochs)

        yield tell


def _told(found: "Found", trial: Trial, alpha: float, eps: float) -> str:
    error = found.errors[list(found.alphas).index(alpha), list(found.epsilons).index(eps)]
    setting = f"lr {exactly(alpha)}" + ("" if trial.recipe.optimizer.name == "sgd" else f", eps {exactly(eps)}")
    return f"{setting}: {'diverged' if np.isnan(error) else trial.told(error)}"


def recommendation(found: "Found", trial: Trial) -> str:
    """The flags to train with."""
    count, diverged = len(found.order), int((found.tried & np.isnan(found.errors)).sum())
    if found.best is None:
        raise PareError(f"All {count} settings diverged: give smaller learning rates, such as --alphas 1e-6,1e-5,1e-4.")
    alpha, eps, error = found.best
    flags = f"--optimizer {trial.recipe.optimizer.name} --lr {exactly(alpha)}"
    flags += "" if trial.recipe.optimizer.name == "sgd" else f" --set eps={exactly(eps)}"
    edge = len(found.alphas) > 2 and alpha in (min(found.alphas), max(found.alphas))
    hint = "; this lr is the last of --alphas, so try further ones" if edge else ""
    return f"Recommended: {flags} ({trial.told(error)}, best of {count} settings, {diverged} diverged{hint})"


def write(found: "Found", trial: Trial) -> None:
    """tuning.json, and the two pictures once there is a setting that did not diverge; other workers may write them at the same time."""
    rows = [
        {
            "lr": found.alphas[i],
            "eps": found.epsilons[j],
            "error": None if np.isnan(e := found.errors[i, j]) else float(e),
        }
        for i, j in found.order
    ]
    content = {"recipe": trial.recipe.as_dict(), "error": "".join(trial.error), "trials": rows, "best": found.best}
    trial.folder.mkdir(parents=True, exist_ok=True)
    write_file(trial.folder / "tuning.json", (json.dumps(content, indent=1) + "\n").encode())
    if found.best is not None:
        _draw(found, trial, found.best[2])


def _draw(found: "Found", trial: Trial, best: float) -> None:
    (label, unit), recipe = trial.error, trial.recipe
    steps = STEPS if unit == " %" else [float(f"{step * abs(best) / 100:.2g}") for step in STEPS]
    title = f"{label} of {recipe.optimizer.name}, {recipe.network} on {recipe.data.name}"
    chart = heat_map(title, found.alphas, found.epsilons, found.errors, found.tried, steps, unit)
    save(chart, trial.folder / "heatmap.svg")
    gaps = found.best_so_far - best
    shown = np.flatnonzero(np.isfinite(gaps))
    series = {recipe.optimizer.name: Curve(shown + 1, gaps[shown], gaps[shown], gaps[shown])}
    name = f"gap to the best {label} found{unit}"
    save(curves("Suboptimality", series, x_label="settings tried", y_label=name), trial.folder / "suboptimality.svg")
