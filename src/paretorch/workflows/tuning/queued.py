"""The trials of a search as jobs of the queue: one process per setting, on this machine or on a cluster.

Optuna says which setting comes next, and whose trial it is, as for trials in one process. The job says who trains: its process claims
the folder of the setting. So a process that dies is replaced, and a setting whose process outlives the command that began it is
waited for, and not trained again.
"""

import json
import math
import time
from collections.abc import Callable, Sequence

from paretorch.errors import DivergenceError, PareError
from paretorch.training.files import write_atomically
from paretorch.training.networks import trusting_words
from paretorch.workflows.queue import Engine, Job, run_jobs
from paretorch.workflows.tuning.trial import Trial

_LOOK = 1.0  # seconds between two looks at whether the trial is still this worker's


class QueuedTrials:
    """Trains each setting by a process of the engine; called from as many threads as the engine has places.

    Args:
        trial: What is trained.
        engine: What runs the processes.
        options: Further words for every process's `pare tune`, such as ("--device", "cpu").
        log: Called with a line when a process dies, or another worker has the setting.
    """

    def __init__(
        self, trial: Trial, engine: Engine, options: Sequence[str] = (), log: Callable[[str], None] = print
    ) -> None:
        self._trial, self._engine, self._options, self._log = trial, engine, options, log

    def __call__(self, alpha: float, eps: float, beat: Callable[[], None]) -> float:
        """The error of a setting."""
        job = self._job(alpha, eps)
        looked = time.monotonic()

        def watch() -> None:
            nonlocal looked
            if time.monotonic() - looked > _LOOK:
                beat()
                looked = time.monotonic()

        ends = run_jobs(
            [job],
            self._engine,
            is_over=lambda job: None if self._trial.result(alpha, eps) is None else "done before",
            ended=lambda job, code, words: None if self._trial.result(alpha, eps) is None else "done",
            begin=lambda job: write_atomically(job.folder / "recipe.json", self._recipe()),
            log=self._log,
            log_ends=False,
            watch=watch,
        )
        if ends.failed:
            raise PareError(f"{job.name} failed: {ends.failed[job.name]}; the same command continues with it")
        error = self._trial.result(alpha, eps)
        assert error is not None
        if math.isnan(error):
            raise DivergenceError(f"{job.name} diverged")
        return error

    def _job(self, alpha: float, eps: float) -> Job:
        place = self._trial.place(alpha, eps)
        words = ("tune", "--config", str(place / "recipe.json"), "--out", str(self._trial.folder))
        setting = ("--setting", f"{alpha!r},{eps!r}", *trusting_words(self._trial.recipe), *self._options)
        return Job(place.name, place, (*words, *setting), place / "log.txt")

    def _recipe(self) -> bytes:
        return json.dumps(self._trial.recipe.as_dict()).encode()
