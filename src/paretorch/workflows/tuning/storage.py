"""Where the trials of a search are kept: a journal file, an SQLite file or a database, shared by all workers."""

from __future__ import annotations

import contextlib
import os
import socket
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from paretorch.errors import ConfigError, MissingExtraError
from paretorch.training.recipe_keys import by_place

_ATTEMPTS = 10
_LOST_AFTER = 1800.0
"""Seconds without a sign of life after which a worker on another machine counts as dead."""
_BEGAN = time.time()


def open_study(place: str | Path | None, name: str, facts: Mapping[str, Any]) -> Study:
    """The study `name` at `place`: a path is a journal file, what has :// is a database's URL, None is this process alone.

    `facts` (plain JSON values) say what is searched: a study whose facts differ is refused, since its trials would not compare.
    """
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        study = optuna.create_study(storage=_storage(place), study_name=name, load_if_exists=True)
    known = study.user_attrs.get("facts")
    if known is None:
        study.set_user_attr("facts", dict(facts))
        return study
    # By place: a storage of 0.1.0 has the recipe's fields under their flat names.
    known, facts = by_place(known), by_place(facts)
    if known != facts:
        names = sorted(key for key in {*known, *facts} if known.get(key) != facts.get(key))
        told = ", ".join(f"{key} (there {known.get(key)}, now {facts.get(key)})" for key in names)
        raise ConfigError(f"The storage holds another search, which differs in {told}: choose another --storage.")
    return study


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Optuna says nothing but errors, and as much as before afterwards."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def _storage(place: str | Path | None) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

    if place is None:
        return None
    text = str(place)
    try:
        if "://" not in text:
            Path(text).parent.mkdir(parents=True, exist_ok=True)
            lock = JournalFileSymlinkLock(text)
            _check_journal(Path(text), lock)
            return JournalStorage(JournalFileBackend(text, lock))
        return _database(text)
    except ImportError as error:
        scheme = text.split(":")[0]
        raise MissingExtraError(
            f"A storage of kind {scheme} needs a Python driver for it, which is missing."
        ) from error
    except (ValueError, OSError, RuntimeError) as error:
        raise _unusable(text, error) from error
    except Exception as error:
        if type(error).__module__.split(".")[0] != "sqlalchemy":
            raise
        raise _unusable(text, error) from error


def _check_journal(file: Path, lock: Any) -> None:
    """Refuse a file of another kind, and cut off a last line that a worker died while writing (or a full disk tore).

    What others append would become part of that line, and the journal could not be read any more.
    """
    content = file.read_bytes() if file.is_file() else b""
    if content and not content.startswith(b"{"):
        raise ValueError("it is no journal of trials")
    if not content or content.endswith(b"\n"):
        return
    lock.acquire()
    try:
        content = file.read_bytes()  # again: a worker that lives may have been writing it
        os.truncate(file, content.rfind(b"\n") + 1)
    finally:
        lock.release()


def _database(url: str) -> Any:
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import DBAPIError

    patience = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {}
    for _ in range(_ATTEMPTS):
        try:
            return RDBStorage(url, engine_kwargs=patience)
        except (DBAPIError, RuntimeError, AssertionError) as error:
            # Workers that start at once all try to make the tables, or meet them half made; a moment later they are there.
            if "unable to open" in str(error):
                raise
            time.sleep(0.3)
    return RDBStorage(url, engine_kwargs=patience)


def _unusable(text: str, error: Exception) -> ConfigError:
    reason = str(error).splitlines()[0]
    return ConfigError(
        f"The storage {text} cannot be opened ({reason}): give a file, or a URL such as sqlite:///tune.db."
    )


def sign_of_life(trial: optuna.Trial) -> None:
    """Say that the worker of this trial is there."""
    trial.set_user_attr("worker", [socket.gethostname(), os.getpid(), time.time()])


def is_dead(trial: FrozenTrial) -> bool:
    """Whether a trial that counts as running lost its worker: its process is gone, or long silent on another machine."""
    if trial.state != TrialState.RUNNING:
        return False
    host, process, when = trial.user_attrs.get("worker", ["", 0, 0.0])
    if host != socket.gethostname():
        began = trial.datetime_start.timestamp() if trial.datetime_start else 0.0
        return bool(time.time() - max(when, began) > _LOST_AFTER)
    if process == os.getpid():  # or of an earlier process that had our number, as in a container that was started again
        return bool(when < _BEGAN)
    return not _exists(process)


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
