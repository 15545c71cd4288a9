"""Runs the jobs of a study through the queue: several at a time, each a process of its own that can be killed and resumed.

Run folders stay under `runs`; what is worth keeping goes to `results/<study>` as soon as a run ends (see `results`). A run
whose file is there, with the same recipe, is not run again. Any number of commands may run the same study in the same
folders, on one machine or several.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paretorch.errors import DIVERGED_CODE, PareError
from paretorch.support.files import sweep
from paretorch.training.finish import read_result
from paretorch.training.folder import check_folder, read_history
from paretorch.training.networks import trusting_words
from paretorch.training.progress import format_metric, headline
from paretorch.training.recipe import Recipe
from paretorch.workflows.queue import Engine, Job, LocalEngine, run_jobs
from paretorch.workflows.studies.results import (
    DIVERGED,
    collect,
    require_mine,
    store,
    stored_result,
    summarize,
    write_json,
)
from paretorch.workflows.studies.study import Study
from paretorch.workflows.studies.tables import as_rows, points_of

Log = Callable[[str], None]
Watch = Callable[[int, int], None]
_WATCH = 1.0  # seconds between two counts of the epochs done


def run_study(
    study: Study,
    results: Path,
    runs: Path,
    *,
    only: Sequence[str] = (),
    engine: Engine | None = None,
    minutes: float | None = None,
    options: Sequence[str] = (),
    log: Log = print,
    watch: Watch | None = None,
) -> dict[str, Any]:
    """Run what is not yet done, write the results, return the summary of all that is done.

    only: patterns of the settings to run; none: all. engine: what runs them; None: one process at a time. minutes: after these,
    runs keep the steps they have taken and end. options: further words for every `pare train`, such as ("--device", "cpu").
    log: called with a line for each run that ends. watch: called now and then with the epochs done and those in all.
    """
    end = math.inf if minutes is None else time.monotonic() + 60 * minutes
    target = results / study.name
    chosen = study.only(only) if only else study
    require_mine(chosen, target)
    sweep(target)
    ran = _Runs(study, chosen, target, runs, options)
    ends = run_jobs(
        ran.jobs(),
        engine or LocalEngine(1),
        is_over=ran.is_over,
        begin=ran.begin,
        ended=ran.ended,
        until=end,
        log=log,
        watch=None if watch is None else ran.watched(watch),
    )
    found, diverged = collect(study, target)
    summary = summarize(study, found)
    if diverged:
        summary[DIVERGED] = diverged
    if verdicts := as_rows(study, points_of(study, found)):
        summary["within 2 points of dense"] = verdicts
    target.mkdir(parents=True, exist_ok=True)
    write_json(target / "summary.json", summary)
    failures = [
        f"{len(those)} of {len(ran.runs)} runs {what} ({', '.join(those)})"
        for those, what in ((list(ends.failed), "failed"), (ends.late, f"not finished in {minutes} minutes"))
        if those
    ]
    if failures:
        raise PareError(f"{', '.join(failures)}; the same command continues with them")
    return summary


@dataclass
class _Run:
    recipe: Recipe
    folder: Path
    result: dict[str, Any] | None = None
    seen: tuple[int, int] = (0, 0)
    """Length of metrics.jsonl when it was last read, and the epochs in it."""

    @property
    def epochs(self) -> int:
        return self.recipe.epochs + self.recipe.finetune

    def epochs_done(self) -> int:
        if self.result is not None:
            return self.epochs
        rows = self.folder / "metrics.jsonl"
        length = rows.stat().st_size if rows.exists() else 0
        if length != self.seen[0]:
            self.seen = length, max((row["epoch"] for row in read_history(self.folder)), default=0)
        return self.seen[1]


class _Runs:
    """What the queue asks about the runs of a study."""

    def __init__(self, study: Study, chosen: Study, target: Path, runs: Path, options: Sequence[str]) -> None:
        self._study, self._target, self._options = study, target, options
        self.runs = {name: _Run(recipe, runs / study.name / name) for name, recipe in chosen.jobs()}
        self._watched = 0.0

    def jobs(self) -> list[Job]:
        return [self._job(name, run) for name, run in self.runs.items()]

    def _job(self, name: str, run: _Run) -> Job:
        folder, recipe = run.folder, str(run.folder / "recipe.json")
        words = ("train", "--config", recipe, "--out", str(folder), "--resume", "--checkpoint-epochs", "10")
        return Job(name, folder, (*words, *trusting_words(run.recipe), *self._options), folder / "log.txt")

    def is_over(self, job: Job) -> str | None:
        """Whether the run has ended, by its file of results or by its folder."""
        run = self.runs[job.name]
        run.result = stored_result(self._target / f"{job.name}.json", run.recipe)
        return "done before" if run.result is not None or self._ends_in_folder(job.name, run) else None

    def begin(self, job: Job) -> None:
        """Write the recipe for the run's process."""
        write_json(job.folder / "recipe.json", self.runs[job.name].recipe.as_dict())

    def ended(self, job: Job, code: int, words: str) -> str | None:
        run = self.runs[job.name]
        if code == DIVERGED_CODE:
            run.result = {DIVERGED: words}
            self._keep(job.name, run)
            return f"diverged: {words}"
        if code != 0 or not self._ends_in_folder(job.name, run) or run.result is None:
            return None
        name = headline(run.result)
        return format_metric(name, run.result[name])

    def _ends_in_folder(self, name: str, run: _Run) -> bool:
        check_folder(run.folder, run.recipe, resume=True)
        run.result = read_result(run.folder)
        if run.result is not None:
            self._keep(name, run)
        return run.result is not None

    def _keep(self, name: str, run: _Run) -> None:
        store(self._study, name, run.recipe, run.folder, self._target, run.result or {})

    def watched(self, watch: Watch) -> Callable[[], None]:
        """A function for the queue that counts epochs once a second."""

        def count() -> None:
            if time.monotonic() - self._watched > _WATCH:
                self._watched = time.monotonic()
                runs = self.runs.values()
                watch(sum(run.epochs_done() for run in runs), sum(run.epochs for run in runs))

        return count
