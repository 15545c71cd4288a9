"""A storage of trials: a journal file or an SQLite file. Nothing is written, and nothing in it is run."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

from paretorch.errors import ArtefactError
from paretorch.support.files import parse_json, read_text
from paretorch.workflows.check.record import NOTE, OK, Checked
from paretorch.workflows.check.runs import check_run, note_left_behind

_SQLITE = b"SQLite format 3\0"


def check_tuning(path: Path) -> Checked:
    """Look at the folder of `pare tune`: its journal, its trials' folders, its summary."""
    found = Checked(path, "a folder of pare tune")
    if (path / "trials.journal").exists():
        found.merge(check_storage(path / "trials.journal"), ".")
    if (path / "tuning.json").exists():
        with found.reading("tuning.json"):
            try:
                trials = parse_json(read_text(path / "tuning.json"))["trials"]
                found.add("tuning.json", OK, f"{len(trials)} settings")
            except (ValueError, KeyError, TypeError) as error:
                raise ArtefactError("it is no summary of trials; the next command writes it anew") from error
    for folder in sorted({one.parent for one in path.glob("*/config.json")}):
        part = check_run(folder)
        part.advice = [f"Remove {folder}: its trial is trained again from the start."] if not part.is_whole else []
        found.merge(part, folder.name)
    note_left_behind(found)
    return found


def check_storage(path: Path) -> Checked:
    """Look at one storage."""
    found = Checked(path, "a storage of trials")
    with found.reading(path.name):
        _check_sqlite(found) if path.read_bytes()[:16] == _SQLITE else _check_journal(found)
    if not found.is_whole:
        found.advice.append(f"Put {path.name} back, or search again in another storage: trials are read as a whole.")
    return found


def _check_journal(found: Checked) -> None:
    path = found.path
    try:
        lines = read_text(path).splitlines(keepends=True)
    except ValueError as error:
        raise ArtefactError("it is no journal of trials: it is no text") from error
    whole = [line for line in lines if line.endswith("\n")]
    for number, line in enumerate(whole, start=1):
        try:
            if not isinstance(parse_json(line), dict):
                raise ValueError
        except ValueError as error:
            raise ArtefactError(f"line {number} of {len(whole)} is damaged") from error
    cut = len(whole) < len(lines)
    if cut:
        found.add(path.name, NOTE, "a last line that was cut, which the next command removes")
    _add_trials(found, _replayed(whole))


def _replayed(lines: list[str]) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import BaseJournalBackend

    class Lines(BaseJournalBackend):
        """A journal in memory, so that the file is only read."""

        def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
            return [json.loads(line) for line in lines[log_number_from:]]

        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            raise ArtefactError("it is only read")

    return lambda: JournalStorage(Lines())


def _check_sqlite(found: Checked) -> None:
    path = found.path
    try:
        with sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True) as connection:
            said = [row[0] for row in connection.execute("PRAGMA integrity_check(1)")]
            tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.Error as error:
        raise ArtefactError(f"it is damaged: {error}") from error
    if said != ["ok"]:
        raise ArtefactError(f"it is damaged: {said[0]}")
    if not {"studies", "trials", "version_info"} <= tables:
        raise ArtefactError("it is no storage of trials")
    found.add(path.name, OK, "SQLite finds it whole")

    def opened() -> Any:
        from optuna.storages import RDBStorage

        return RDBStorage(f"sqlite:///{path}")

    _add_trials(found, opened)


def _add_trials(found: Checked, opened: Any) -> None:
    """Add how many trials there are in each state, as Optuna reads them."""
    try:
        from paretorch.workflows.tuning.storage import quiet_optuna, readable
    except ModuleNotFoundError:
        found.add(found.path.name, NOTE, "its trials are not read: pip install 'paretorch[tune]'")
        return
    with quiet_optuna(), readable(found.path):
        storage = opened()
        for study in storage.get_all_studies():
            trials = storage.get_all_trials(study._study_id, deepcopy=False)
            states = Counter(trial.state.name.lower() for trial in trials)
            settings = Counter(
                tuple(sorted(trial.params.items()))
                for trial in trials
                if trial.state.name in ("COMPLETE", "PRUNED") and "repeats" not in trial.user_attrs
            )
            twice = sum(count > 1 for count in settings.values())
            words = ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "no trials"
            found.add(found.path.name, NOTE if twice else OK, f"{study.study_name}: {words}")
            if twice:
                found.add(found.path.name, NOTE, f"{twice} settings were trained more than once")


def is_storage(path: Path) -> bool:
    """Whether a file looks like a storage."""
    try:
        with path.open("rb") as file:
            start = file.read(16)
    except OSError:
        return False
    return start == _SQLITE or path.suffix == ".journal"
