"""Storages of a search: one worker per trial, workers that die or stop, and files that are no storage or hostile."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import sys
import time
from pathlib import Path

import optuna
import pytest

from paretorch.errors import ConfigError, MissingExtraError
from paretorch.workflows import tuning
from paretorch.workflows.tuning.storage import open_study

GRID = [float(i + 1) for i in range(6)], [1.0, 2.0]
FACTS = {"alphas": GRID[0], "epsilons": GRID[1]}


def place_of(kind: str, folder: Path) -> str:
    return f"sqlite:///{folder}/s.db" if kind == "sqlite" else str(folder / "s.journal")


def _pop(place: str, folder: Path, start: float) -> None:
    study = open_study(place, "tuning", FACTS)
    time.sleep(max(0.0, start - time.time()))
    while study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.WAITING,)):
        trial = study.ask()
        if trial.number < 12:
            (folder / f"{trial.number}-{os.getpid()}").touch()


@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_an_enqueued_trial_goes_to_one_worker(tmp_path, kind) -> None:
    place, folder = place_of(kind, tmp_path), tmp_path / "popped"
    folder.mkdir()
    for i in range(12):
        open_study(place, "tuning", FACTS).enqueue_trial({"alpha": i // 2, "eps": i % 2})
    start = time.time() + 0.5
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_pop, args=(place, folder, start)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    popped = [path.name.split("-")[0] for path in folder.iterdir()]
    assert sorted(popped, key=int) == [str(i) for i in range(12)], "each once"


def _stuck(place: str, mark: Path) -> None:
    def train(alpha: float, eps: float, beat) -> float:
        mark.touch()
        if not (mark.parent / "returned").exists():
            time.sleep(600)
        return alpha

    tuning.search(train, *GRID, method="grid", trials=12, storage=place)


@pytest.mark.parametrize("kind", ["sqlite", "journal"])
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP], ids=["zombie", "stopped"])
def test_a_zombie_or_a_stopped_worker_holds_nobody_up(tmp_path, monkeypatch, kind, end) -> None:
    monkeypatch.setenv("PARE_PATIENCE", "1")
    place = place_of(kind, tmp_path)
    worker = multiprocessing.get_context("fork").Process(target=_stuck, args=(place, tmp_path / "mark"))
    worker.start()
    while not (tmp_path / "mark").exists():
        time.sleep(0.02)
    os.kill(worker.pid, end)  # nobody waits for it: after SIGKILL it is a zombie, whose number still exists
    trained: list[tuple[float, float]] = []
    found = tuning.search(
        lambda a, e, beat: trained.append((a, e)) or a, *GRID, method="grid", trials=12, storage=place
    )
    assert found.tried.all()
    assert len(trained) == len(set(trained)) == 12
    worker.kill()
    worker.join()


def _slow(place, mark: Path) -> None:
    """Trains for nine seconds, with beats that take longer than others are patient."""
    write = tuning.storage.Beat.write

    def late(beat) -> None:
        if mark.exists():
            time.sleep(2.5)
        write(beat)

    def train(alpha: float, eps: float, beat) -> float:
        mark.touch()
        time.sleep(9)
        beat()
        with mark.open("a") as file:
            file.write(f"{alpha} {eps}\n")
        return alpha

    tuning.storage.Beat.write = late  # of this process alone
    tuning.search(train, [1.0], [1.0], method="grid", trials=1, storage=place)


@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_a_living_worker_whose_beats_are_slow_keeps_its_trial(tmp_path, monkeypatch, kind) -> None:
    monkeypatch.setenv("PARE_PATIENCE", "2")
    place, mark = place_of(kind, tmp_path), tmp_path / "mark"
    worker = multiprocessing.get_context("fork").Process(target=_slow, args=(place, mark))
    worker.start()
    while not mark.exists():
        time.sleep(0.02)
    again: list[float] = []
    found = tuning.search(
        lambda a, e, beat: again.append(a) or 9.0, [1.0], [1.0], method="grid", trials=1, storage=place
    )
    worker.join()
    assert not again, "it was trained by who began it"
    assert mark.read_text() == "1.0 1.0\n"
    assert found.best == (1.0, 1.0, 1.0)


def test_a_worker_that_was_given_up_stores_nothing(tmp_path) -> None:
    place = tmp_path / "s.journal"
    first = True

    def train(alpha: float, eps: float, beat) -> float:
        nonlocal first
        if first:
            first = False
            study = open_study(place, "tuning", {"alphas": [1.0], "epsilons": [1.0]})
            study.tell(study.get_trials()[-1].number, state=optuna.trial.TrialState.FAIL)  # as another worker would
            with pytest.raises(Exception, match="given to another worker"):
                beat()
            return 99.0
        return 5.0

    found = tuning.search(train, [1.0], [1.0], trials=1, storage=place)
    assert found.best == (1.0, 1.0, 5.0)


@pytest.mark.parametrize("kind", ["sqlite", "journal"])
@pytest.mark.parametrize("moment", ["suggest_int", "set_user_attr"])
def test_a_worker_that_was_given_up_before_it_began_asks_again(tmp_path, monkeypatch, kind, moment) -> None:
    """A busy storage can take longer than others are patient."""
    place, before = place_of(kind, tmp_path), getattr(optuna.Trial, moment)
    taken: list[int] = []

    def slow(trial, *args, **kwargs):
        if not taken:
            taken.append(trial.number)
            study = open_study(place, "tuning", {"alphas": [1.0], "epsilons": [1.0]})
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)  # as another worker would
        return before(trial, *args, **kwargs)

    monkeypatch.setattr(optuna.Trial, moment, slow)
    found = tuning.search(lambda a, e, beat: 5.0, [1.0], [1.0], trials=1, storage=place)
    assert taken
    assert found.best == (1.0, 1.0, 5.0)


class _Hostile:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def test_a_hostile_storage_runs_no_code(tmp_path) -> None:
    """Optuna's own CMA-ES unpickles such attributes: with it, this test finds the folder."""
    mark, place = tmp_path / "ran", tmp_path / "s.journal"
    study = open_study(place, "tuning", FACTS)
    text = pickle.dumps(_Hostile(mark)).hex()
    distribution = optuna.distributions.IntDistribution(0, 5)
    other = optuna.distributions.IntDistribution(0, 1)
    for i in range(8):
        attributes = {f"{key}{part}": text for key in ("cma:optimizer", "cma:optimizer:") for part in ("", "0")}
        study.add_trial(
            optuna.trial.create_trial(
                value=float(i),
                params={"alpha": i % 6, "eps": i // 6},
                distributions={"alpha": distribution, "eps": other},
                system_attrs={**attributes, "cma:generation": 0, "cmaes_generation": text},
            )
        )
    found = tuning.search(lambda a, e, beat: a, *GRID, method="cmaes", trials=12, storage=place)
    assert found.tried.all()
    assert not mark.exists()


def _journal(folder: Path) -> list[dict[str, object]]:
    place = folder / "good.journal"
    tuning.search(lambda a, e, beat: a, *GRID, trials=3, storage=place)
    return [json.loads(line) for line in place.read_text().splitlines()]


@pytest.mark.parametrize(
    "kind", ["cut", "keys", "order", "types", "array", "text", "binary", "off the grid", "half off"]
)
def test_a_wrong_journal_is_one_sentence(tmp_path, kind) -> None:
    rows = _journal(tmp_path)
    text = {
        "cut": lambda: rows[2:],
        "keys": lambda: [{key: value for key, value in row.items() if key != "worker_id"} for row in rows],
        "order": lambda: rows[::-1],
        "types": lambda: [{**row, "op_code": "x"} for row in rows],
        "array": lambda: [rows[0], [1]],
        "text": lambda: [rows[0], "not json"],
        "binary": list,
        "off the grid": lambda: json.loads(
            json.dumps(rows).replace('"param_value_internal": ', '"param_value_internal": 9')
        ),
        # A trial that waits, and was asked for one of the two values.
        "half off": lambda: [
            {**row, "params": {}, "system_attrs": {"fixed_params": {"alpha": 99}}} if row["op_code"] == 4 else row
            for row in rows
            if row["op_code"] < 5
        ],
    }[kind]()
    place = tmp_path / "wrong.journal"
    lines = [row if row == "not json" else json.dumps(row) for row in text]
    place.write_bytes(b"{\xff\xfe\n{\n" if kind == "binary" else ("\n".join(lines) + "\n{}\n").encode())
    if kind in ("off the grid", "half off"):
        place.write_text("\n".join(lines) + "\n")
    with pytest.raises(ConfigError, match="cannot be opened"):
        tuning.search(lambda a, e, beat: a, *GRID, trials=4, storage=place)


def test_trials_of_a_journal_may_lack_their_times(tmp_path) -> None:
    """Of trials that were added by hand, say: some have times, and others have none."""
    good = tmp_path / "good.journal"
    tuning.search(lambda a, e, beat: a, *GRID, trials=2, method="grid", storage=good)
    study = open_study(good, "tuning", {"alphas": GRID[0], "epsilons": GRID[1]})
    values = {"alpha": len(GRID[0]) - 1, "eps": len(GRID[1]) - 1}
    kinds = {name: optuna.distributions.IntDistribution(0, top) for name, top in values.items()}
    study.add_trial(optuna.trial.create_trial(value=7.0, params=values, distributions=kinds))
    rows = [json.loads(line) for line in good.read_text().splitlines()]
    rows[-1]["datetime_start"] = None
    del rows[-1]["datetime_complete"]
    place = tmp_path / "timeless.journal"
    place.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = tuning.search(lambda a, e, beat: a, *GRID, trials=4, method="grid", storage=place)
    assert found.tried.sum() == 4
    assert found.errors[-1, -1] == 7.0


def test_a_file_that_is_no_database_is_one_sentence(tmp_path) -> None:
    (tmp_path / "s.db").write_bytes(b"nothing of the kind" * 100)
    with pytest.raises(ConfigError, match="cannot be opened"):
        tuning.search(lambda a, e, beat: a, *GRID, trials=4, storage=f"sqlite:///{tmp_path}/s.db")


def test_a_missing_driver_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtraError, match=r"driver psycopg, .*psycopg\[binary\]"):
        tuning.search(lambda a, e, beat: a, *GRID, trials=1, storage="postgresql://localhost/x")


def test_a_database_that_does_not_answer_is_one_sentence() -> None:
    pytest.importorskip("psycopg")
    place = "postgresql+psycopg://nobody@127.0.0.1:1/trials"
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:1/trials cannot be opened .*refused"):
        tuning.search(lambda a, e, beat: a, *GRID, trials=1, storage=place)
