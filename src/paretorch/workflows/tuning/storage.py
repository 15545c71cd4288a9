"""Where the trials of a search are kept (a journal file, an SQLite file or a database), and which worker has which trial.

Optuna's own heartbeats belong to `Study.optimize`, are known to databases alone, and compare clocks. The beats here are
attributes of a trial, so they are the same for journals and databases, and every worker judges them by its own clock
(see `paretorch.workflows.queue`).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from paretorch.errors import ConfigError, MissingExtraError, PareError
from paretorch.training.recipe_values import by_place
from paretorch.workflows.queue import Silence, beat_interval

_ATTEMPTS = 10
_SQLITE_WAIT = 60.0
"""Seconds that a worker waits for others to finish writing."""
_HOPELESS = ("unable to open", "Connection refused", "connection failed", "not a database")
_DRIVERS = {"psycopg": "psycopg[binary]", "psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient"}
"""What to install for a module that is missing, if its name is another."""
_WRONG = (KeyError, IndexError, AssertionError, TypeError, AttributeError, ValueError, OSError, RuntimeError)
"""What Optuna raises for files that are no storage of its own."""


def open_study(place: str | Path | None, name: str, facts: Mapping[str, Any]) -> Study:
    """The study `name` at `place`: a path is a journal file, what has :// is a database's URL, None is this process alone.

    `facts` (plain JSON values) say what is searched: a study whose facts differ is refused, since its trials would not compare.
    """
    with quiet_optuna(), warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        with readable(place):
            study = optuna.create_study(storage=_storage(place), study_name=name, load_if_exists=True)
            known = study.user_attrs.get("facts")
            if not isinstance(known, dict | None) or len(study.directions) > 1:
                raise ValueError("it holds a search of another kind")
    if known is None:
        study.set_user_attr("facts", dict(facts))
        return study
    # By place: a storage of 0.1.0 has the recipe's fields under their flat names.
    known, facts = by_place(known), by_place(facts)
    if known != facts:
        names = sorted(key for key in {*known, *facts} if known.get(key) != facts.get(key))
        differences = ", ".join(f"{key} (there {known.get(key)}, now {facts.get(key)})" for key in names)
        raise ConfigError(f"The storage holds another search, which differs in {differences}: choose another --storage")
    return study


def another_of(study: Study) -> Study:
    """The same study for another thread, with a sampler of its own."""
    return optuna.load_study(study_name=study.study_name, storage=study._storage)


@contextlib.contextmanager
def quiet_optuna() -> Iterator[None]:
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
    if "://" in text:
        return _database(text)
    Path(text).parent.mkdir(parents=True, exist_ok=True)
    lock = JournalFileSymlinkLock(text)
    _check_journal(Path(text), lock)
    return JournalStorage(JournalFileBackend(text, lock))


@contextlib.contextmanager
def readable(place: str | Path | None) -> Iterator[None]:
    """Whatever a storage that cannot be read raises inside, in one sentence."""
    try:
        yield
    except PareError:
        raise
    except ImportError as error:
        raise _missing_driver(str(place), error) from error
    except _WRONG as error:
        raise _unusable(str(place), error) from error
    except Exception as error:
        if type(error).__module__.split(".")[0] not in ("sqlalchemy", "optuna"):
            raise
        raise _unusable(str(place), error) from error


def _missing_driver(text: str, error: ImportError) -> MissingExtraError:
    cause: BaseException | None = error
    while cause is not None and not getattr(cause, "name", None):  # Optuna's own error has no name
        cause = cause.__cause__ or cause.__context__
    scheme, module = text.split(":")[0], str(getattr(cause, "name", "")).split(".")[0]
    if not module:
        return MissingExtraError(f"A storage of kind {scheme} needs a Python driver for it, which is missing")
    package = _DRIVERS.get(module, module)
    hint = ", or give postgresql+psycopg:// and pip install 'psycopg[binary]'" if module == "psycopg2" else ""
    return MissingExtraError(
        f"A storage of kind {scheme} needs the driver {module}, which is missing: pip install '{package}'{hint}"
    )


def _check_journal(file: Path, lock: Any) -> None:
    """Refuse a file of another kind, and cut off a last line that a worker died while writing (or a full disk tore).

    What others append would become part of that line, and the journal could not be read any more.
    """
    content = file.read_bytes() if file.is_file() else b""
    if content and not content.startswith(b"{"):
        raise ValueError("it is no journal of trials")
    for line in content.splitlines()[:-1]:
        if not isinstance(json.loads(line), dict):
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

    options = {"connect_args": {"timeout": _SQLITE_WAIT}} if url.startswith("sqlite") else {}
    for attempt in range(_ATTEMPTS):
        try:
            storage = RDBStorage(url, engine_kwargs=options)
        except (DBAPIError, RuntimeError, AssertionError) as error:
            # Workers that start at once all try to make the tables, or meet them half made; a moment later they are there.
            if attempt == _ATTEMPTS - 1 or any(words in str(error) for words in _HOPELESS):
                raise
            time.sleep(0.3)
        else:
            if url.startswith("sqlite"):
                _one_writer(storage.engine)
            return storage
    raise AssertionError  # the last attempt raises


def _one_writer(engine: Any) -> None:
    """Let each transaction of an SQLite file begin with the lock for writing.

    Optuna reads the state of a trial and then writes it, and asks for a lock of the row in between, which SQLite does not
    know: two workers would both find a trial waiting, and both take it.
    """
    from sqlalchemy import event

    if engine.url.database in (None, "", ":memory:"):
        return
    engine.dispose()  # connections that are open already begin as before

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # or the driver begins transactions itself

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _unusable(text: str, error: Exception) -> ConfigError:
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    lines = str(cause).strip().splitlines()
    reason = lines[0] if isinstance(cause, OSError | RuntimeError) or _is_told(cause) else "it is no storage of trials"
    return ConfigError(
        f"The storage {text} cannot be opened ({reason}): give a file, or a URL such as sqlite:///tune.db"
    )


def _is_told(error: BaseException) -> bool:
    """Whether the message is meant for readers: that of a KeyError or of a line that is no JSON is not."""
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return False
    return bool(str(error).strip()) and not isinstance(
        error, KeyError | IndexError | AssertionError | TypeError | AttributeError
    )


_BEAT = "beat"


class TakenOver(PareError):
    """Another worker has this trial now."""


class Beat:
    """Tells others that the worker of a trial is there; calling it raises if they gave it up all the same, or if it is to stop."""

    def __init__(self, study: Study, trial: optuna.Trial, stop: threading.Event) -> None:
        self._study, self._trial, self._stop = study, trial, stop
        self._count = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, daemon=True)

    def __call__(self) -> None:
        """Raise if the trial belongs to another worker, or if this one is to stop."""
        if self._stop.is_set():
            raise KeyboardInterrupt
        trials = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        if all(each.number != self._trial.number for each in trials):
            raise TakenOver(f"Trial {self._trial.number} was given to another worker while this one was silent")

    def write(self) -> None:
        """Write one beat."""
        self._count += 1
        self._trial.set_user_attr(_BEAT, [socket.gethostname(), os.getpid(), self._count])

    def _go_on(self) -> None:
        pause = beat_interval()
        while not self._over.wait(pause):
            begin = time.monotonic()
            try:
                self.write()
            except optuna.exceptions.UpdateFinishedTrialError:
                return  # given to another worker: the next call says so
            except Exception:
                pause = beat_interval() / 4  # a storage that does not answer now: others see silence until it does
            else:
                pause = max(beat_interval() / 4, beat_interval() - (time.monotonic() - begin))

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
