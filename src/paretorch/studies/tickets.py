"""Studies of ticket searches: the tables [[tickets]] of a study, as `pare tickets` takes them, one after another in one folder.

Several workers share the folder and may be killed; the same command goes on. Every ticket's row, the summary and the
plot go to results/<study>.
"""

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from paretorch.deploy.text import table as aligned
from paretorch.errors import PareError
from paretorch.studies.results import write_json
from paretorch.studies.study import Study

_KEPT = ("tickets.jsonl", "summary.json", "tickets.svg")


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
    from paretorch.sparsity.tickets.result import collect, write_result
    from paretorch.sparsity.tickets.storage import Storage

    folder = runs / study.name
    (recipe,) = study.settings.values()
    for number, table in enumerate(study.tickets):
        config = runs / f"{study.name}-{number}.json"
        runs.mkdir(parents=True, exist_ok=True)
        write_json(config, {**recipe.as_dict(), "tickets": {"seeds": list(study.seeds), **table}})
        log = config.with_suffix(".log")
        _work(["tickets", "--config", str(config), "--storage", str(folder), *options], log, parallel)
        tell(f"[{number + 1}/{len(study.tickets)}] {_named(table)}: done")
    storage = Storage.open(folder)
    write_result(storage, collect(storage), shlex.join(["pare", *sys.argv[1:]]))
    target = results / study.name
    target.mkdir(parents=True, exist_ok=True)
    for name in _KEPT:
        shutil.copyfile(folder / name, target / name)


def ticket_lines(target: Path) -> list[str]:
    """The tickets in a folder of results, a line each; none where there is no such folder."""
    path = target / "tickets.jsonl"
    if not path.exists():
        return []
    rows: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    head = ["search", "round", "sparsity", "validation", "test", "epochs"]
    shares = ("sparsity", "accuracy", "test_accuracy")
    body = [
        [row["search"], str(row["round"]), *(f"{100 * row[name]:.2f} %" for name in shares), str(row["epochs"])]
        for row in rows
    ]
    return aligned([head, *body])


def _work(words: Sequence[str], log: Path, parallel: int) -> None:
    command = [sys.executable, "-m", "paretorch.cli", *words]
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
