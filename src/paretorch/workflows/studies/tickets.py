"""Studies of ticket searches: the tables [[tickets]] of a study, as `pare tickets` takes them, one after another in one folder.

Several workers share the folder and may be killed; the same command goes on. Every ticket's row, the plot, and the summary
with mean and spread over the seeds go to results/<study>.
"""

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paretorch.errors import PareError
from paretorch.support.children import module_command
from paretorch.workflows.studies.results import heading, read_stored, require_recipe, write_json
from paretorch.workflows.studies.study import Study
from paretorch.workflows.studies.tickets_table import by_method, result_of, show_methods, show_tickets
from paretorch.workflows.tickets.result import collect, write_result
from paretorch.workflows.tickets.storage import Storage

_ROWS, _SUMMARY, _PLOTS = "tickets.jsonl", "summary.json", ("tickets.svg", "layers.svg")


def run_tickets(
    study: Study,
    results: Path,
    runs: Path,
    *,
    parallel: int = 1,
    options: Sequence[str] = (),
    tell: Callable[[str], None] = print,
) -> None:
    """Do what is not yet done of the study's searches, with `parallel` workers, and write the results."""
    folder = runs / study.name
    (recipe,) = study.settings.values()
    target = results / study.name
    stored, _ = read_stored(target / _SUMMARY)
    if stored is not None:
        require_recipe(replace(recipe, seed=stored.seed), stored, target / _SUMMARY)  # seeds belong to the searches
    for number, table in enumerate(study.tickets):
        config = runs / f"{study.name}-{number}.json"
        runs.mkdir(parents=True, exist_ok=True)
        write_json(config, {**recipe.as_dict(), "tickets": {"seeds": list(study.seeds), **table}})
        log = config.with_suffix(".log")
        _work(["tickets", "--config", str(config), "--storage", str(folder), *options], log, parallel)
        tell(f"[{number + 1}/{len(study.tickets)}] {_named(table)}: done")
    _keep(study, Storage.open(folder), target)


def _keep(study: Study, storage: Storage, target: Path) -> None:
    """Write the results: every row that there is, and the summary of the study's own seeds."""
    every = collect(storage)
    write_result(storage, every, shlex.join(["pare", *sys.argv[1:]]))
    target.mkdir(parents=True, exist_ok=True)
    for name in (_ROWS, *_PLOTS):
        if (storage.path / name).exists():  # layers are drawn where there are several methods
            shutil.copyfile(storage.path / name, target / name)
    own = result_of([*every.dense, *every.tickets], study.seeds)
    recipe = storage.recipe.as_dict()
    summary = {**heading(study), "recipe": recipe, "methods": by_method(own), **own.as_dict()}
    write_json(target / _SUMMARY, summary)


def ticket_lines(study: Study, target: Path) -> list[str]:
    """The tickets in a folder of results, a line each, and what they say of each method; none where there are none."""
    path = target / _ROWS
    if not path.exists():
        return []
    result = result_of([json.loads(line) for line in path.read_text().splitlines()], study.seeds)
    return [*show_tickets(result), "", *show_methods(result)] if result.tickets else []


def _work(words: Sequence[str], log: Path, parallel: int) -> None:
    command = module_command("paretorch.cli", *words)
    with open(log, "ab") as file:
        workers = [subprocess.Popen(command, stdout=file, stderr=file) for _ in range(parallel)]
        try:
            codes = [worker.wait() for worker in workers]
        finally:
            for worker in workers:
                worker.terminate()
                worker.wait()
    if any(codes):
        lines = log.read_text(errors="replace").strip().splitlines()
        raise PareError(f"{lines[-1] if lines else 'no output'} (see {log}); the same command goes on.")


def _named(table: dict[str, Any]) -> str:
    method = table.get("method", "cs")
    return ", ".join(method) if isinstance(method, list) else str(method)
