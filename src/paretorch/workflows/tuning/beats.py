"""Who works at which trial: beats in the storage, judged by every worker's own clock (see `queue.silence`).

Optuna's own heartbeats belong to `Study.optimize`, are known to databases alone, and compare clocks. These beats are
attributes of a trial, so they are the same for journals and databases.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator

import optuna
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from paretorch.errors import PareError
from paretorch.workflows.queue.silence import Silence, beat_interval

_BEAT = "beat"


class TakenOver(PareError):
    """Another worker has this trial now."""


class Beat:
    """Tells others that the worker of a trial is there; calling it raises if they gave it up all the same."""

    def __init__(self, study: Study, trial: optuna.Trial) -> None:
        self._study, self._trial = study, trial
        self._count = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, daemon=True)

    def __call__(self) -> None:
        """Raise if the trial belongs to another worker."""
        trials = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        if all(each.number != self._trial.number for each in trials):
            raise TakenOver(f"Trial {self._trial.number} was given to another worker while this one was silent")

    def tell(self) -> None:
        """Write one beat."""
        self._count += 1
        self._trial.set_user_attr(_BEAT, [socket.gethostname(), os.getpid(), self._count])

    def _go_on(self) -> None:
        while not self._over.wait(beat_interval()):
            try:
                self.tell()
            except optuna.exceptions.UpdateFinishedTrialError:
                return  # given to another worker: the next call says so
            except Exception:
                continue  # a storage that does not answer now: others see silence

    @contextlib.contextmanager
    def going_on(self) -> Iterator[None]:
        """Beat while inside."""
        self._thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._thread.join()


def is_dead(trial: FrozenTrial, silence: Silence) -> bool:
    """Whether a trial that counts as running has lost its worker."""
    return trial.state == TrialState.RUNNING and silence.lasts(trial.number, str(trial.user_attrs.get(_BEAT)))
