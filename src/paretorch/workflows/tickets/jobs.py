"""The units of a storage as jobs of the queue: one process each, several at a time."""

import math
import time
from collections.abc import Callable, Sequence

from paretorch.errors import PareError
from paretorch.training.networks import trusting_words
from paretorch.workflows.queue import Ends, Engine, Job, run_jobs
from paretorch.workflows.tickets.storage import Row, Storage, Unit

_WATCH = 1.0  # seconds between two counts of the epochs done


def run_units(
    storage: Storage,
    engine: Engine,
    options: Sequence[str] = (),
    *,
    until: float = math.inf,
    log: Callable[[str], None] = print,
    watch: Callable[[int, int], None] | None = None,
) -> Ends:
    """Do what is left in the storage by processes of the engine, together with any other workers; returns how it ended.

    Args:
        storage: The folder with the units.
        engine: What runs the processes.
        options: Further words for every `pare tickets`, such as ("--device", "cpu").
        until: The time, by `time.monotonic`, at which searches keep the steps they have taken and end.
        log: Called with a line when something happens.
        watch: Called once a second with the epochs done and those in all.
    """
    units = {unit.name: unit for unit in storage.units()}
    words = ("tickets", "--storage", str(storage.path), *trusting_words(storage.recipe))
    jobs = [
        Job(name, unit.folder, (*words, "--unit", name, *options), unit.folder / "log.txt")
        for name, unit in units.items()
    ]
    watched = 0.0

    def count() -> None:
        nonlocal watched
        if watch is not None and time.monotonic() - watched > _WATCH:
            watched = time.monotonic()
            watch(*storage.epochs())

    return run_jobs(
        jobs,
        engine,
        is_over=lambda job: "done before" if units[job.name].is_done() else None,
        ended=lambda job, code, words: _told(units[job.name]) if code == 0 and units[job.name].is_done() else None,
        until=until,
        log=log,
        watch=count,
    )


def require_done(ends: Ends) -> None:
    """Raise with what failed, if anything did."""
    if len(ends.failed) == 1:
        ((name, words),) = ends.failed.items()
        raise PareError(f"{name} failed: {words}; the same command continues with it")
    if ends.failed:
        raise PareError(
            f"{len(ends.failed)} searches failed ({', '.join(ends.failed)}); the same command continues with them"
        )


def _told(unit: Unit) -> str:
    row: Row = unit.rows()[-1]
    return f"{100 * row['sparsity']:.2f} % zeros, accuracy {100 * row['accuracy']:.2f} %"
