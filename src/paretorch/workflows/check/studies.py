"""Folders of several runs: the run folders of a study, and the results that it leaves."""

from __future__ import annotations

from pathlib import Path

from paretorch.errors import ArtefactError
from paretorch.support.files import read_json
from paretorch.workflows.check.record import OK, Checked
from paretorch.workflows.check.runs import check_run, note_left_behind
from paretorch.workflows.studies.results import DIVERGED, read_stored


def check_runs(path: Path) -> Checked:
    """Look at every run folder below a folder."""
    found = Checked(path, "run folders")
    for folder in sorted({one.parent for one in path.glob("*/config.json")}):
        found.merge(check_run(folder), folder.name)
    note_left_behind(found)
    return found


def check_results(path: Path) -> Checked:
    """Look at results/<study>: a file for each run, and the summary."""
    found = Checked(path, "the results of a study")
    for file in sorted(path.glob("*.json")):
        with found.reading(file.name):
            try:
                content = read_json(file)
            except ValueError as error:
                raise ArtefactError("it is no JSON") from error
            if not isinstance(content, dict):
                raise ArtefactError("it is no result")
            if "run" not in content:
                found.add(file.name, OK, "a summary")
                continue
            recipe, result = read_stored(file)
            if recipe is None or not isinstance(result, dict) or not isinstance(content.get("metrics"), list):
                raise ArtefactError("it lacks its recipe, its result or its rows")
            words = "diverged" if DIVERGED in result else f"{len(content['metrics'])} rows"
            found.add(file.name, OK, words)
    note_left_behind(found)
    if not found.is_whole:
        found.advice.append(
            "Remove what is damaged, and the command of the study writes it again from its run folder, or runs it again."
        )
    return found
