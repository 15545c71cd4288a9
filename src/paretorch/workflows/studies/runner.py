"""Runs the jobs of a study, several at a time, each a process of its own that can be killed and resumed.

Run folders stay under `runs`; what is worth keeping goes to `results/<study>` as soon as a run ends (see `results`). A run
whose file is there, with the same recipe, is not run again.
"""

import math
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paretorch.errors import DIVERGED_CODE, PareError
from paretorch.support.files import sweep
from paretorch.support.processes import start
from paretorch.training.files import is_taken
from paretorch.training.finish import read_result
from paretorch.training.folder import check_folder, read_history
from paretorch.training.progress import format_metric, headline
from paretorch.training.recipe import Recipe
from paretorch.workflows.queue import patience
from paretorch.workflows.studies.processes import stop
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


@dataclass
class _Job:
    name: str
    recipe: Recipe
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    result: dict[str, Any] | None = None
    log_start: int = 0
    """Bytes of log.txt that processes before this one have written."""
    held_since: float | None = None
    """When a process of before was first seen in the folder."""

    @property
    def epochs(self) -> int:
        return self.recipe.epochs + self.recipe.finetune


def run_study(
    study: Study,
    results: Path,
    runs: Path,
    *,
    only: Sequence[str] = (),
    parallel: int = 1,
    minutes: float | None = None,
    options: Sequence[str] = (),
    log: Log = print,
    watch: Watch | None = None,
) -> dict[str, Any]:
    """Run what is not yet done, write the results, return the summary of all that is done.

    only: patterns of the settings to run; none: all. parallel: processes at once. minutes: after these, runs keep the steps
    they have taken and end. options: further words for every `pare train`, such as ("--device", "cpu"). log: called with a
    line for each run that ends. watch: called now and then with the epochs done and those in all.
    """
    end = math.inf if minutes is None else time.monotonic() + 60 * minutes
    target = results / study.name
    chosen = study.only(only) if only else study
    require_mine(chosen, target)
    sweep(target)
    jobs = [
        _Job(name, recipe, runs / study.name / name, result=stored_result(target / f"{name}.json", recipe))
        for name, recipe in chosen.jobs()
    ]
    failed = _run_all(
        jobs,
        parallel,
        end,
        options,
        lambda job: store(study, job.name, job.recipe, job.folder, target, job.result or {}),
        log,
        watch,
    )
    found, diverged = collect(study, target)
    summary = summarize(study, found)
    if diverged:
        summary[DIVERGED] = diverged
    if verdicts := as_rows(study, points_of(study, found)):
        summary["within 2 points of dense"] = verdicts
    target.mkdir(parents=True, exist_ok=True)
    write_json(target / "summary.json", summary)
    late = [job for job in jobs if job.result is None and job not in failed]
    told = [
        f"{len(those)} of {len(jobs)} runs {what} ({', '.join(job.name for job in those)})"
        for those, what in ((failed, "failed"), (late, f"not finished in {minutes} minutes"))
        if those
    ]
    if told:
        raise PareError(f"{', '.join(told)}; the same command continues with them")
    return summary


def _run_all(
    jobs: list[_Job],
    parallel: int,
    end: float,
    options: Sequence[str],
    keep: Callable[[_Job], None],
    log: Log,
    watch: Watch | None,
) -> list[_Job]:
    """Run the jobs that have no result, until the clock shows `end`; returns those that fail."""
    waiting, running = list(jobs), list[_Job]()
    done, failed = 0, list[_Job]()
    try:
        while (waiting or running) and time.monotonic() < end:
            while len(running) < parallel and (job := _next(waiting)) is not None:
                if job.result is None and not _is_over(job, keep):
                    job.process = _start(job, parallel, options)
                    running.append(job)
                else:
                    done += 1
                    log(f"[{done}/{len(jobs)}] {job.name}: done before")
            if running or waiting:
                time.sleep(0.2)
            if watch is not None:
                watch(sum(_epochs_done(job) for job in jobs), sum(job.epochs for job in jobs))
            for job in [each for each in running if each.process is not None and each.process.poll() is not None]:
                running.remove(job)
                done += 1
                assert job.process is not None
                if job.process.returncode == DIVERGED_CODE:
                    job.result = {DIVERGED: _last_words(job)}
                    keep(job)
                elif job.process.returncode != 0 or not _is_over(job, keep):
                    failed.append(job)
                log(f"[{done}/{len(jobs)}] {job.name}: {_outcome(job)}")
    finally:
        stop([job.process for job in running if job.process is not None])
    return failed


def _next(waiting: list[_Job]) -> _Job | None:
    """Take the first job whose folder is free, or whose folder has been held for too long: its process says so then.

    A study that was killed may have left processes behind, which end once they have kept their last step.
    """
    now = time.monotonic()
    for job in waiting:
        if is_taken(job.folder):
            job.held_since = now if job.held_since is None else job.held_since
            if now - job.held_since < patience():
                continue
        waiting.remove(job)
        return job
    return None


def _is_over(job: _Job, keep: Callable[[_Job], None]) -> bool:
    """Whether the run folder holds the end of this job; if so, its results are kept."""
    check_folder(job.folder, job.recipe, resume=True)
    job.result = read_result(job.folder)
    if job.result is not None:
        keep(job)
    return job.result is not None


def _start(job: _Job, parallel: int, options: Sequence[str]) -> subprocess.Popen[bytes]:
    job.folder.mkdir(parents=True, exist_ok=True)
    config = job.folder / "recipe.json"
    write_json(config, job.recipe.as_dict())
    words = [
        "train",
        "--config",
        str(config),
        "--out",
        str(job.folder),
        "--resume",
        "--checkpoint-epochs",
        "10",
        *options,
    ]
    threads = str(max(1, (os.cpu_count() or 1) // parallel))
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": threads}
    environment.setdefault("OMP_NUM_THREADS", threads)
    with open(job.folder / "log.txt", "ab") as log:
        job.log_start = log.tell()
        return start("paretorch.cli", *words, log=log, environment=environment)


def _epochs_done(job: _Job) -> int:
    if job.result is not None:
        return job.epochs
    return max((row["epoch"] for row in read_history(job.folder)), default=0)


def _outcome(job: _Job) -> str:
    if job.result is None:
        return f"failed: {_last_words(job)}"
    name = headline(job.result)
    return f"diverged: {job.result[DIVERGED]}" if DIVERGED in job.result else format_metric(name, job.result[name])


def _last_words(job: _Job) -> str:
    with open(job.folder / "log.txt", "rb") as log:
        log.seek(job.log_start)
        lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("pare: ") if lines else "no output"
