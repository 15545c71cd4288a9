"""One worker of a queue: it takes jobs that are free, has an engine run each as a process, and goes on until all are over.

A job is a command of `pare` that continues what is in the job's folder. The worker takes the claim on that folder and hands it
to the process, which beats as long as it lives. So a worker that dies takes its processes' jobs with it, and any other
worker, of the same command or of another one, on this machine or elsewhere, continues them from their last checkpoints.
"""

import contextlib
import math
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from paretorch.workflows.queue.claims import LOST_CODE, Claim, Claims, beat_interval, owner_of

Log = Callable[[str], None]
_PAUSE = 0.1  # seconds between two looks at the processes
_PROBES = 16  # claims of others to meet before waiting
_LOOKING = 1.0  # seconds to look for a free job before the processes are looked at again
_DEATHS = 3  # of processes, after which a job has failed
_INTERRUPTED = 130


@dataclass(frozen=True)
class Job:
    """A job.

    Args:
        name: Its name, unique in the queue.
        folder: Its folder, which all workers see; claims are there.
        words: Words of `pare` that begin the job or continue it.
        log: The file that its processes' output goes to.
    """

    name: str
    folder: Path
    words: tuple[str, ...]
    log: Path


class Process(Protocol):
    """A job under way."""

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        ...


class Engine(Protocol):
    """Where processes run.

    Attributes:
        places: How many run at the same time.
        sees_deaths: Whether a process that `poll` calls ended cannot run any more; else its claim must fall silent first.
    """

    @property
    def places(self) -> int: ...

    @property
    def sees_deaths(self) -> bool: ...

    def start(self, job: Job, claim: int) -> Process:
        """Start the job's process, which adopts the claim of that number."""
        ...

    def stop(self, processes: Sequence[Process]) -> None:
        """Let the processes keep their last step and end them."""
        ...


@dataclass
class Ends:
    """How the jobs ended: what those that failed said, and the names of those that are not over."""

    failed: dict[str, str] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)


@dataclass
class _Running:
    job: Job
    claim: Claim
    process: Process
    log_start: int


def run_jobs(
    jobs: Sequence[Job],
    engine: Engine,
    *,
    is_over: Callable[[Job], str | None],
    ended: Callable[[Job, int, str], str | None],
    begin: Callable[[Job], None] = lambda job: None,
    until: float = math.inf,
    log: Log = print,
    log_ends: bool = True,
    watch: Callable[[], None] | None = None,
) -> Ends:
    """Run the jobs that are not over, together with all other workers that have them too; returns how they ended.

    Args:
        jobs: The jobs; they are begun in this order.
        engine: What runs them.
        is_over: What a job came to, in a few words, whoever ran it; None if there is something left to do.
        ended: Called with a job whose process has ended, its exit code and its last line; keeps the result, and returns what
            the job came to, or None if it failed.
        begin: Called with a job before its process is started.
        until: The time, by `time.monotonic`, at which running jobs keep their last step and end.
        log: Called with a line when something happens.
        log_ends: Whether the end of a job is something that happens.
        watch: Called now and then; what it raises ends the jobs, which keep their last steps.
    """
    return _Worker(jobs, engine, is_over, ended, begin, log, log_ends).run(until, watch or (lambda: None))


class _Worker:
    def __init__(
        self,
        jobs: Sequence[Job],
        engine: Engine,
        is_over: Callable[[Job], str | None],
        ended: Callable[[Job, int, str], str | None],
        begin: Callable[[Job], None],
        log: Log,
        log_ends: bool,
    ) -> None:
        self._engine, self._is_over, self._ended, self._begin, self._log = engine, is_over, ended, begin, log
        self._log_ends = log_ends
        self._waiting, self._count = list(jobs), len(jobs)
        self._running: list[_Running] = []
        self._claims, self._order = Claims(), random.Random()
        self._at, self._look_again, self._done = 0, 0.0, 0
        self._deaths: dict[str, int] = {}
        self._logged_waiting = False
        self._ends = Ends()

    def run(self, until: float, watch: Callable[[], None]) -> Ends:
        try:
            while (self._waiting or self._running) and time.monotonic() < until:
                self._fill()
                if self._waiting or self._running:
                    time.sleep(_PAUSE)
                watch()
                for each in list(self._running):
                    self._look_at(each)
        finally:
            self._engine.stop([each.process for each in self._running])
            for each in self._running:
                each.claim.release()
        self._ends.late = [job.name for job in (*(each.job for each in self._running), *self._waiting)]
        return self._ends

    def _fill(self) -> None:
        while len(self._running) < self._engine.places and time.monotonic() >= self._look_again:
            taken = self._take()
            if taken is None:
                return
            job, claim = taken
            if claim.taken_from:
                self._log(f"{job.name}: its worker fell silent ({claim.taken_from}); continuing its run")
            try:
                job.log.parent.mkdir(parents=True, exist_ok=True)
                begun = job.log.stat().st_size if job.log.exists() else 0
                self._begin(job)
                self._running.append(_Running(job, claim, self._engine.start(job, claim.number), begun))
            except BaseException:
                claim.release()
                raise

    def _take(self) -> tuple[Job, Claim] | None:
        """Claim a job that is free and not over.

        Jobs are taken in their order. A worker that meets the claim of another one goes on at random, so that a thousand
        workers do not all ask for the same jobs.
        """
        held, until = 0, time.monotonic() + _LOOKING
        while self._waiting and held < _PROBES and time.monotonic() < until:
            self._at %= len(self._waiting)
            job = self._waiting[self._at]
            outcome = self._is_over(job)
            if outcome is None:
                claim = self._claims.take(job.folder, on_lost=lambda sentence: None)
                if claim is None:
                    held += 1
                    self._at = self._order.randrange(len(self._waiting))
                    continue
                outcome = self._is_over(job)  # another worker may have ended it between the two looks
                if outcome is None:
                    del self._waiting[self._at]
                    return job, claim
                claim.release()
            del self._waiting[self._at]
            self._log_end(job, outcome)
        if held:
            self._look_again = time.monotonic() + beat_interval() / 5
            self._log_waiting()
        return None

    def _look_at(self, each: _Running) -> None:
        code = each.process.poll()
        if code is None:
            return
        self._running.remove(each)
        job = each.job
        if code == LOST_CODE:
            self._log(f"{job.name}: another worker has taken it over")
            self._waiting.append(job)
            return
        if code < 0 or code == _INTERRUPTED:
            self._deaths[job.name] = self._deaths.get(job.name, 0) + 1
            if self._deaths[job.name] < _DEATHS:
                self._log(f"{job.name}: its process was {_how(code)}; another one continues it")
                self._waiting.insert(0, job)
                self._at, self._look_again = 0, 0.0
                self._end_claim(each)
                return
        words = _last_line(job.log, each.log_start)
        if code < 0:
            words = f"its processes were {_how(code)} {_DEATHS} times"
        outcome = self._ended(job, code, words)
        self._end_claim(each, certain=code >= 0)
        if outcome is None:
            self._ends.failed[job.name] = words
        self._log_end(job, f"failed: {words}" if outcome is None else outcome)

    def _end_claim(self, each: _Running, *, certain: bool = False) -> None:
        if certain or self._engine.sees_deaths:
            each.claim.release()
        else:
            each.claim.abandon()

    def _log_end(self, job: Job, what: str) -> None:
        self._done += 1
        if self._log_ends:
            self._log(f"[{self._done}/{self._count}] {job.name}: {what}")

    def _log_waiting(self) -> None:
        """Say once that other workers have all that is left."""
        if self._logged_waiting or self._running or not self._waiting:
            return
        self._logged_waiting = True
        names = ", ".join(f"{job.name} ({owner_of(job.folder)})" for job in self._waiting[:5])
        more = f" and {len(self._waiting) - 5} more" if len(self._waiting) > 5 else ""
        self._log(f"{names}{more}: in the hands of other workers; waiting for them")


def _how(code: int) -> str:
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return "stopped" if code == _INTERRUPTED else "killed"


def _last_line(path: Path, start: int) -> str:
    """The last line of a log that was written since `start`."""
    with contextlib.suppress(OSError), open(path, "rb") as log:
        log.seek(start)
        if lines := log.read().decode(errors="replace").strip().splitlines():
            return lines[-1].removeprefix("pare: ")
    return "no output"
