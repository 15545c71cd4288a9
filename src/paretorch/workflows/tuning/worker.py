"""A search over a grid of (α, ε) with any training: by any sampler, by any number of workers that may join, die and return."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.exceptions import UpdateFinishedTrialError
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from paretorch.errors import ConfigError, DivergenceError
from paretorch.workflows.queue import Silence
from paretorch.workflows.tuning.landscape import Floats
from paretorch.workflows.tuning.samplers import SAMPLERS, sampler
from paretorch.workflows.tuning.storage import (
    Beat,
    TakenOver,
    another_of,
    is_dead,
    open_study,
    quiet_optuna,
    readable,
)

METHODS = (*SAMPLERS, "grid")
_REPEATS = 10
_PAUSE = 1.0
"""Seconds between two looks at whether others have finished the settings that are left."""
Cell = tuple[int, int]
Train = Callable[[float, float, Callable[[], None]], float]
OnTrial = Callable[["Found", float, float], None]


@dataclass(frozen=True)
class Found:
    """What is known so far: `errors` [α, ε] (nan where the training diverged) wherever `tried`."""

    alphas: Sequence[float]
    epsilons: Sequence[float]
    errors: Floats
    tried: NDArray[np.bool_]
    order: Sequence[Cell]
    """The settings in the order in which they were finished."""

    @property
    def best(self) -> tuple[float, float, float] | None:
        """α, ε and error of the best setting; None while every one diverged."""
        if not (self.tried & np.isfinite(self.errors)).any():
            return None
        i, j = np.unravel_index(int(np.nanargmin(np.where(self.tried, self.errors, np.nan))), self.errors.shape)
        return self.alphas[int(i)], self.epsilons[int(j)], float(self.errors[i, j])

    @property
    def best_so_far(self) -> Floats:
        """The lowest error after each finished setting; inf while there is none."""
        values = np.array([self.errors[cell] for cell in self.order], dtype=np.float64)
        lowest: Floats = np.minimum.accumulate(np.where(np.isfinite(values), values, np.inf))
        return lowest


def search(
    train: Train,
    alphas: Sequence[float],
    epsilons: Sequence[float],
    *,
    method: str = "cgld",
    trials: int = 30,
    storage: str | Path | None = None,
    name: str = "tuning",
    seed: int = 0,
    first: tuple[float, float] | None = None,
    facts: Mapping[str, Any] | None = None,
    on_trial: OnTrial | None = None,
    workers: int = 1,
) -> Found:
    """Try `trials` settings (all workers together, those under way too) and return everything that is known.

    train: called with α, ε and a function to call before anything is written, which raises if another worker has taken the
        trial over; returns the error, lower is better. A DivergenceError, or a value that is not finite, ends the trial as
        pruned: it is not tried again.
    method: "cgld", "gld", "tpe", "cmaes", "random", or "grid" (one setting after the other).
    storage, name: see `open_study`. A setting that is known is not trained again, and one whose worker died is taken over.
    first: α and ε to begin near; without them descent begins at random, as in the thesis.
    on_trial: called after each setting with what is known and that setting.
    workers: how many settings to try at the same time. `train` is then called from so many threads; if one fails or the search is
        interrupted, the others' next call of the function that they were given raises KeyboardInterrupt.
    """
    if workers < 1:
        raise ConfigError(f"A search has at least 1 worker, not {workers}")
    if method not in METHODS:
        raise ConfigError(f"Unknown method {method!r}: choose from {', '.join(METHODS)}")
    alphas, epsilons = [float(alpha) for alpha in alphas], [float(eps) for eps in epsilons]  # of arrays too
    if trials < 1 or not alphas or not epsilons:
        raise ConfigError("A search needs at least one trial, one α and one ε")
    for letter, values in (("α", alphas), ("ε", epsilons)):
        if not all(math.isfinite(value) and value >= 0 for value in values) or len(set(values)) < len(values):
            raise ConfigError(f"Values of {letter} are numbers of at least 0, each once, not {list(values)}")
    everything = {"alphas": list(alphas), "epsilons": list(epsilons), **(facts or {})}
    with quiet_optuna():
        study = open_study(storage, name, everything)
        with readable(storage):
            _check_cells(study, len(alphas), len(epsilons))
            _known(study, alphas, epsilons)
        if first is not None and not study.get_trials(deepcopy=False):
            study.enqueue_trial({"alpha": _nearest(alphas, first[0]), "eps": _nearest(epsilons, first[1])})
        begun = len(study.get_trials(deepcopy=False))
        works = []
        for number in range(min(workers, trials, len(alphas) * len(epsilons))):
            own = study if number == 0 else another_of(study)
            # Descent and CMA-ES draw from the number of the trial; the others would repeat the first worker's draws.
            own.sampler = sampler(
                "random" if method == "grid" else method,
                seed if method in ("gld", "cgld", "cmaes") else seed + begun + number,
            )
            works.append(partial(_work, own, train, alphas, epsilons, method, trials))
        return works[0](on_trial, threading.Event()) if len(works) == 1 else _together(works, on_trial)


def _together(works: Sequence[Callable[[OnTrial | None, threading.Event], Found]], on_trial: OnTrial | None) -> Found:
    """Let each work in a thread; what one of them raises ends them all."""
    stop, lock = threading.Event(), threading.Lock()
    found: list[Found] = []
    errors: list[BaseException] = []

    def one_at_a_time(known: Found, alpha: float, eps: float) -> None:
        with lock:
            if on_trial is not None:
                on_trial(known, alpha, eps)

    def run(work: Callable[[OnTrial | None, threading.Event], Found]) -> None:
        try:
            found.append(work(one_at_a_time, stop))
        except BaseException as error:  # raised in the thread that waits
            errors.append(error)
            stop.set()

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
    return max(found, key=lambda known: len(known.order))


def _work(
    study: Study,
    train: Train,
    alphas: Sequence[float],
    epsilons: Sequence[float],
    method: str,
    trials: int,
    on_trial: OnTrial | None,
    stop: threading.Event,
) -> Found:
    wanted, repeats = min(trials, len(alphas) * len(epsilons)), 0
    silence = Silence(is_slow=True)
    while (found := _known(study, alphas, epsilons)).tried.sum() < wanted and not stop.is_set():
        _take_over(study, silence)
        if len(_busy(study, silence)) >= wanted - found.tried.sum():
            time.sleep(_PAUSE)
            continue
        if method == "grid" or repeats >= _REPEATS:
            _enqueue_untried(study, found, silence, by_chance=repeats > 0)
        trial = study.ask()
        beat = Beat(study, trial, stop)
        try:
            beat.write()
            cell = trial.suggest_int("alpha", 0, len(alphas) - 1), trial.suggest_int("eps", 0, len(epsilons) - 1)
            is_repeated = _repeated(study, trial, cell, silence)
        except UpdateFinishedTrialError:  # the storage took so long that another worker has given the trial up
            continue
        if is_repeated:
            repeats += 1
            continue
        repeats = 0
        if len(_busy(study, silence)) > wanted - _known(study, alphas, epsilons).tried.sum():
            # Others began the last settings meanwhile. The proposal is in the storage before they are counted, so of two
            # workers at least one sees the other; where both give up, chance lets one of them come back first.
            _give_up(study, trial.number)
            time.sleep(_PAUSE * np.random.default_rng().random())
            continue
        if not _try(study, trial, beat, partial(train, alphas[cell[0]], epsilons[cell[1]])):
            continue
        if on_trial is not None:
            on_trial(_known(study, alphas, epsilons), alphas[cell[0]], epsilons[cell[1]])
    return found


def _try(study: Study, trial: Trial, beat: Beat, train: Callable[[Beat], float]) -> bool:
    """Train and store the error; returns False if another worker has taken the trial over."""
    try:
        with beat.going_on():
            error = _as_error(train(beat))
            beat()
    except TakenOver:
        return False
    except DivergenceError:
        error = math.nan
    except BaseException:
        _give_up(study, trial.number)  # stopped or broken: the next worker takes it over
        raise
    try:
        if math.isfinite(error):
            study.tell(trial, error)
        else:
            study.tell(trial, state=TrialState.PRUNED)
    except (ValueError, UpdateFinishedTrialError):
        return False  # taken over since the last look
    return True


def _give_up(study: Study, number: int) -> None:
    """End a trial that has no worker; another one may be faster."""
    with contextlib.suppress(ValueError, UpdateFinishedTrialError):
        study.tell(number, state=TrialState.FAIL)


def _as_error(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"train returned {value!r}: return the error as a number, or nan to give up") from error


def _repeated(study: Study, trial: Trial, cell: Cell, silence: Silence) -> bool:
    """Answer a proposal that is known from what is known, and give up one that another worker is busy with.

    The proposal is in the storage before the others are read. So of two workers with the same one, at least one sees the
    other: no setting is trained twice. (Both may give it up, and come back to it.)
    """
    others = [each for each in study.get_trials(deepcopy=False) if each.number != trial.number and _cell(each) == cell]
    known = next((each for each in others if each.state in (TrialState.COMPLETE, TrialState.PRUNED)), None)
    if known is None and not any(each.state == TrialState.RUNNING and not is_dead(each, silence) for each in others):
        return False
    trial.set_user_attr("repeats", True)
    if known is None:
        _give_up(study, trial.number)
        return True
    with contextlib.suppress(ValueError, UpdateFinishedTrialError):  # another worker has given it up
        if known.value is None:
            study.tell(trial, state=TrialState.PRUNED)
        else:
            study.tell(trial, known.value)
    return True


def _take_over(study: Study, silence: Silence) -> None:
    """Ask again for the settings of trials that were begun and not finished."""
    rows = study.get_trials(deepcopy=False)
    for trial in [each for each in rows if is_dead(each, silence)]:
        _give_up(study, trial.number)
    rows = study.get_trials(deepcopy=False)
    settled = {_cell(each) for each in rows if each.state != TrialState.FAIL}
    queued = {_cell(each) for each in rows if not each.state.is_finished()}
    for trial in [each for each in rows if each.state == TrialState.FAIL and "repeats" not in each.user_attrs]:
        cell = _cell(trial)
        if cell is not None and cell not in settled and cell not in queued:
            study.enqueue_trial({"alpha": cell[0], "eps": cell[1]})
            queued.add(cell)


def _busy(study: Study, silence: Silence) -> set[Cell]:
    """The settings that workers are busy with."""
    rows = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    return {cell for each in rows if not is_dead(each, silence) and (cell := _cell(each)) is not None}


def _free(study: Study, found: Found, silence: Silence) -> list[Cell]:
    """The settings that nobody tried or is busy with."""
    busy = _busy(study, silence)
    return [(i, j) for i, j in np.argwhere(~found.tried).tolist() if (i, j) not in busy]


def _enqueue_untried(study: Study, found: Found, silence: Silence, by_chance: bool) -> None:
    """The first setting that is free, or any: workers that met at one part ways."""
    free = _free(study, found, silence)
    if free and not study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
        cell = free[np.random.default_rng().integers(len(free)) if by_chance else 0]
        study.enqueue_trial({"alpha": cell[0], "eps": cell[1]})


def _known(study: Study, alphas: Sequence[float], epsilons: Sequence[float]) -> Found:
    errors = np.full((len(alphas), len(epsilons)), np.nan)
    tried = np.zeros(errors.shape, dtype=bool)
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
    order: list[Cell] = []
    for trial in sorted(done, key=_finished_at):
        cell = _cell(trial)
        if cell is None or "repeats" in trial.user_attrs:
            continue
        errors[cell] = math.nan if trial.value is None else trial.value
        tried[cell] = True
        order.append(cell)
    return Found(alphas, epsilons, errors, tried, order)


def _finished_at(trial: FrozenTrial) -> datetime:
    """When a trial was finished; long ago if a storage does not say."""
    moment = trial.datetime_complete or trial.datetime_start
    return datetime.min if moment is None else moment.replace(tzinfo=None)


def _nearest(values: Sequence[float], wanted: float) -> int:
    """By ratio, as such values are spread."""
    tiny = 1e-300
    return int(np.abs(np.log(np.maximum(values, tiny)) - np.log(max(wanted, tiny))).argmin())


def _cell(trial: FrozenTrial) -> Cell | None:
    """The setting of a trial; of one that waits, or whose worker died before it read it, the one that was asked for."""
    params = _asked(trial)
    if "alpha" not in params or "eps" not in params:
        return None
    return params["alpha"], params["eps"]


def _asked(trial: FrozenTrial) -> dict[str, Any]:
    """What a trial was asked to be, and what it has become."""
    return {**trial.system_attrs.get("fixed_params", {}), **trial.params}


def _check_cells(study: Study, rows: int, columns: int) -> None:
    for trial in study.get_trials(deepcopy=False):
        asked = _asked(trial)
        for name, count in (("alpha", rows), ("eps", columns)):
            if name in asked and not _is_index(asked[name], count):
                raise ValueError(f"its trial {trial.number} has {name} {asked[name]!r}, which is not on the grid")


def _is_index(value: Any, count: int) -> bool:
    return isinstance(value, int) and 0 <= value < count
