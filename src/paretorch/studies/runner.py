"""Runs the jobs of a study, several at a time, each a process of its own that can be killed and resumed.

Run folders stay under `runs`; under `results/<study>` come one JSON file a run, with its command, recipe, hardware and all
rows of metrics, and summary.json with mean and spread over the seeds.
"""

import contextlib
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paretorch.errors import PareError
from paretorch.studies.study import Study
from paretorch.training.files import write_atomically
from paretorch.training.finish import read_result
from paretorch.training.folder import check_folder, read_history
from paretorch.training.progress import headline, told
from paretorch.training.recipe import Recipe

Tell = Callable[[str], None]
Watch = Callable[[int, int], None]


@dataclass
class _Job:
    name: str
    recipe: Recipe
    folder: Path
    process: subprocess.Popen[bytes] | None = None


def run_study(
    study: Study,
    results: Path,
    runs: Path,
    *,
    parallel: int = 1,
    options: Sequence[str] = (),
    tell: Tell = print,
    watch: Watch | None = None,
) -> dict[str, Any]:
    """Run what is not yet done, write the results, return the summary.

    parallel: processes at once. options: further words for every `pare train`, such as ("--device", "cpu").
    tell: called with a line for each run that ends. watch: called now and then with the epochs done and those in all.
    """
    jobs = [_Job(name, recipe, runs / study.name / name) for name, recipe in study.jobs()]
    _run_all(jobs, parallel, options, tell, watch)
    target = results / study.name
    target.mkdir(parents=True, exist_ok=True)
    for job in jobs:
        _write(target / f"{job.name}.json", _raw(study, job))
    summary = summarize(study, {job.name: read_result(job.folder) or {} for job in jobs})
    _write(target / "summary.json", summary)
    return summary


def summarize(study: Study, found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Mean, standard deviation (of the sample), least and greatest of every number of the results, by setting."""
    settings: dict[str, Any] = {}
    for setting in study.settings:
        rows = [found[f"{setting}-seed{seed}"] for seed in study.seeds]
        names = [name for name, value in rows[0].items() if isinstance(value, int | float)]
        settings[setting] = {name: _spread([row[name] for row in rows]) for name in names}
    return {
        "study": study.name,
        "title": study.title,
        "claim": study.claim,
        "command": shlex.join(["pare", *sys.argv[1:]]),
        "seeds": list(study.seeds),
        "settings": settings,
    }


def _spread(values: list[float]) -> dict[str, float]:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return {
        "mean": statistics.fmean(values),
        "std": deviation,
        "min": min(values),
        "max": max(values),
        "n": len(values),
    }


def _run_all(jobs: list[_Job], parallel: int, options: Sequence[str], tell: Tell, watch: Watch | None) -> None:
    waiting, running = list(jobs), list[_Job]()
    done, failed = 0, list[_Job]()
    try:
        while waiting or running:
            while waiting and len(running) < parallel:
                job = waiting.pop(0)
                check_folder(job.folder, job.recipe, resume=True)
                if read_result(job.folder) is None:
                    job.process = _start(job, parallel, options)
                    running.append(job)
                else:
                    done += 1
                    tell(f"[{done}/{len(jobs)}] {job.name}: done before")
            time.sleep(0.2)
            if watch is not None:
                watch(
                    sum(_epochs_done(job) for job in jobs), sum(job.recipe.epochs + job.recipe.finetune for job in jobs)
                )
            for job in [each for each in running if each.process is not None and each.process.poll() is not None]:
                running.remove(job)
                done += 1
                result = read_result(job.folder) if job.process is not None and job.process.returncode == 0 else None
                if result is None:
                    failed.append(job)
                name = headline(result or {})
                outcome = f"failed: {_last_words(job)}" if result is None else told(name, result[name])
                tell(f"[{done}/{len(jobs)}] {job.name}: {outcome}")
    finally:
        for job in running:
            _stop(job)
    if failed:
        names = ", ".join(job.name for job in failed)
        raise PareError(f"{len(failed)} of {len(jobs)} runs failed ({names}); the same command continues with them.")


def _start(job: _Job, parallel: int, options: Sequence[str]) -> subprocess.Popen[bytes]:
    job.folder.mkdir(parents=True, exist_ok=True)
    config = job.folder / "recipe.json"
    _write(config, job.recipe.as_dict())
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
        return subprocess.Popen(
            [sys.executable, "-m", "paretorch.cli", *words], stdout=log, stderr=log, env=environment
        )


def _stop(job: _Job) -> None:
    if job.process is None:
        return
    job.process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        job.process.wait(10)
    job.process.kill()
    job.process.wait()


def _epochs_done(job: _Job) -> int:
    return max((row["epoch"] for row in read_history(job.folder)), default=0)


def _last_words(job: _Job) -> str:
    lines = (job.folder / "log.txt").read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no output"


def _raw(study: Study, job: _Job) -> dict[str, Any]:
    config = json.loads((job.folder / "config.json").read_text())
    return {
        "study": study.name,
        "run": job.name,
        "seed": job.recipe.seed,
        **config,
        "result": read_result(job.folder),
        "metrics": read_history(job.folder),
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
