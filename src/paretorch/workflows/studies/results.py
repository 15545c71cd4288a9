"""What a study leaves under results/<study>: one JSON file a run, and summary.json with mean and spread over the seeds.

A run's file has its command, recipe, hardware, result and all rows of metrics, so that tables can be made, and runs be
known as done, where the run folders are gone.
"""

import json
import shlex
import statistics
import sys
from collections.abc import Sized
from pathlib import Path
from typing import Any

from paretorch.errors import ArtefactError, ConfigError
from paretorch.support.files import read_json
from paretorch.training.files import write_atomically
from paretorch.training.folder import read_history
from paretorch.training.recipe import Recipe
from paretorch.training.recipe_values import require_same_recipe, stored_recipe
from paretorch.workflows.studies.study import Study

Found = dict[str, dict[str, Any]]
"""Results of finished runs by the name of the run."""
DIVERGED = "diverged"
"""In place of a result: what a run said whose loss was no longer finite. It is over too; the same recipe would end there again."""


def store(study: Study, name: str, recipe: Recipe, folder: Path, target: Path, result: dict[str, Any]) -> None:
    """Write the file of a run that is over."""
    content = {
        "study": study.name,
        "run": name,
        "seed": recipe.seed,
        **read_json(folder / "config.json"),
        "result": result,
        "metrics": read_history(folder),
    }
    target.mkdir(parents=True, exist_ok=True)
    write_json(target / f"{name}.json", content)


def collect(study: Study, target: Path) -> tuple[Found, list[str]]:
    """The results there are of the study's runs, and the names of those that diverged; runs of another recipe are none of them."""
    found: Found = {}
    diverged: list[str] = []
    for name, recipe in study.jobs():
        result = stored_result(target / f"{name}.json", recipe)
        if result is not None and DIVERGED in result:
            diverged.append(name)
        elif result is not None:
            found[name] = result
    return found, diverged


def stored_result(path: Path, recipe: Recipe) -> dict[str, Any] | None:
    """What the file of a run says of its end, or None where it is none of this recipe."""
    stored, result = read_stored(path)
    return result if stored is not None and stored.as_dict() == recipe.as_dict() else None


def require_mine(study: Study, target: Path) -> None:
    """Refuse to replace results of another recipe: they may have taken hours."""
    for name, recipe in study.jobs():
        path = target / f"{name}.json"
        stored, result = read_stored(path)
        if stored is not None and result is not None:
            require_recipe(recipe, stored, path)


def require_recipe(recipe: Recipe, stored: Recipe, path: Path) -> None:
    """Refuse to replace the file of results of another recipe, by the names of what differs."""
    try:
        require_same_recipe(recipe, stored.as_dict(), path)
    except ConfigError as error:
        raise ConfigError(f"{error}, or remove the file to have it measured again") from None


def read_stored(path: Path) -> tuple[Recipe | None, dict[str, Any] | None]:
    """Recipe and result in a file of results; None for what it does not have."""
    try:
        content = read_json(path)
        return stored_recipe(content["recipe"], str(path)), content.get("result")
    except (OSError, ValueError, KeyError, TypeError, ArtefactError):
        return None, None


def summarize(study: Study, found: Found) -> dict[str, Any]:
    """Mean, standard deviation (of the sample), least and greatest of every number of the results, by setting."""
    settings: dict[str, Any] = {}
    for setting in study.settings:
        rows = runs_of(study, setting, found)
        names = [name for name, value in rows[0].items() if isinstance(value, int | float)] if rows else []
        if names:
            settings[setting] = {name: spread([row[name] for row in rows if name in row]) for name in names}
    return {**heading(study), "settings": settings}


def heading(study: Study) -> dict[str, Any]:
    """How every summary.json begins."""
    return {
        "study": study.name,
        "title": study.title,
        "claim": study.claim,
        "command": shlex.join(["pare", *sys.argv[1:]]),
        "seeds": list(study.seeds),
    }


def runs_of(study: Study, setting: str, found: Found) -> list[dict[str, Any]]:
    """The results of a setting, over the seeds that are done."""
    return [found[name] for seed in study.seeds if (name := f"{setting}-seed{seed}") in found]


def spread(values: list[float]) -> dict[str, float]:
    """Mean, standard deviation of the sample, least, greatest and number."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return {
        "mean": statistics.fmean(values),
        "std": deviation,
        "min": min(values),
        "max": max(values),
        "n": len(values),
    }


def require_some(study: Study, found: Sized, where: Path) -> None:
    """Refuse to make a table of nothing."""
    if not found:
        raise ConfigError(f"There are no results of {study.name} in {where}: run it with `pare study {study.name}`")


def write_json(path: Path, content: dict[str, Any]) -> None:
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
