"""A search over (α, ε): budgets, divergence, workers that join, die and return."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import optuna
import pytest

from paretorch.errors import ConfigError, DivergenceError, MissingExtraError
from paretorch.workflows import tuning
from paretorch.workflows.tuning.storage import open_study

ALPHAS, EPSILONS = tuning.alpha_grid(), tuning.eps_grid()
METHODS = ["cgld", "gld", "tpe", "cmaes", "random", "grid"]


def bowl(alpha: float, eps: float, beat) -> float:
    if alpha > 100:
        raise DivergenceError("too far")
    return 5 + abs(math.log10(alpha)) + 0.1 * abs(math.log10(eps) + 2)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_tries_so_many_settings_once_each(method) -> None:
    seen: list[tuple[float, float]] = []
    told: list[int] = []

    def train(alpha: float, eps: float, beat) -> float:
        seen.append((alpha, eps))
        return bowl(alpha, eps, beat)

    found = tuning.search(
        train, ALPHAS, EPSILONS, method=method, trials=25, on_trial=lambda f, a, e: told.append(len(f.order))
    )
    assert len(seen) == len(set(seen)) == found.tried.sum() == 25
    assert told == list(range(1, 26))
    alpha, eps, error = found.best
    assert error == pytest.approx(bowl(alpha, eps, None)) == found.best_so_far[-1]
    assert (np.diff(found.best_so_far[np.isfinite(found.best_so_far)]) <= 0).all()


def test_the_whole_grid_and_no_more() -> None:
    for method in METHODS:
        found = tuning.search(bowl, [0.1, 1.0, 1000.0], [1e-3, 1.0], method=method, trials=50)
        assert found.tried.all(), method
        assert np.isnan(found.errors[2]).all(), "diverged"
        assert found.best == (1.0, 1e-3, pytest.approx(5.1))


def test_descent_finds_the_best_of_the_thesis_grid() -> None:
    found = tuning.search(bowl, ALPHAS, EPSILONS, method="cgld", trials=40)
    assert found.best[2] < 5.5


@pytest.mark.parametrize("method", METHODS)
def test_begins_where_it_is_told_to(method, tmp_path) -> None:
    seen = []
    options = {"method": method, "first": (0.12, 1e-9), "storage": tmp_path / "journal.log"}
    for trials in (2, 3):
        tuning.search(lambda a, e, beat: seen.append((a, e)) or 1.0, ALPHAS, EPSILONS, trials=trials, **options)
    assert seen[0] == (0.1, 1e-8)
    assert len(set(seen)) == 3


def test_all_diverge() -> None:
    found = tuning.search(lambda a, e, beat: math.nan, [1.0, 2.0], [1.0], trials=2)
    assert found.best is None
    assert found.tried.all()


@pytest.mark.parametrize("place", ["journal.log", "sqlite"])
def test_stopped_and_continued(tmp_path, place) -> None:
    storage = f"sqlite:///{tmp_path}/s.db" if place == "sqlite" else tmp_path / "deep" / place
    count = 0

    def stops(alpha: float, eps: float, beat) -> float:
        nonlocal count
        count += 1
        if count == 4:
            raise KeyboardInterrupt
        return bowl(alpha, eps, beat)

    options = {"storage": storage, "facts": {"network": "a"}, "seed": 3}
    with pytest.raises(KeyboardInterrupt):
        tuning.search(stops, ALPHAS, EPSILONS, trials=8, **options)
    found = tuning.search(stops, ALPHAS, EPSILONS, trials=8, **options)
    assert len(found.order) == 8
    assert count == 9, "the interrupted setting is tried again, no other"
    again = tuning.search(stops, ALPHAS, EPSILONS, trials=8, **options)
    assert count == 9
    assert again.best == found.best
    with pytest.raises(ConfigError, match="network \\(there a, now b\\)"):
        tuning.search(bowl, ALPHAS, EPSILONS, storage=storage, facts={"network": "b"})


def _worker(storage: str, folder: str, die: bool, method: str = "tpe") -> None:
    def train(alpha: float, eps: float, beat) -> float:
        beat()
        if die:
            (Path(folder) / "dying").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        name = Path(folder) / f"{alpha:g}-{eps:g}"
        assert not name.exists(), "no setting is trained twice"
        name.touch()
        time.sleep(0.01)
        return bowl(alpha, eps, beat)

    tuning.search(train, ALPHAS[::4], EPSILONS[::4], method=method, trials=18, storage=storage)


@pytest.mark.parametrize(("kind", "method"), [("journal", "tpe"), ("sqlite", "cgld"), ("journal", "grid")])
def test_workers_start_at_once(tmp_path, kind, method) -> None:
    storage = f"sqlite:///{tmp_path}/s.db" if kind == "sqlite" else str(tmp_path / "s.db")
    folder = tmp_path / "trained"
    folder.mkdir()
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_worker, args=(storage, str(folder), False, method)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert len(list(folder.iterdir())) == 18, "so many settings, all workers together"


def test_workers_join_and_die(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PARE_PATIENCE", "2")
    storage = str(tmp_path / "journal.log")
    context = multiprocessing.get_context("fork")
    victim = context.Process(target=_worker, args=(storage, str(tmp_path), True))
    victim.start()
    victim.join()
    assert (tmp_path / "dying").exists()
    workers = [context.Process(target=_worker, args=(storage, str(tmp_path), False)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    trained = [path for path in tmp_path.iterdir() if path.name not in ("journal.log", "dying")]
    assert len(trained) == 18


def test_wrong_arguments(tmp_path) -> None:
    with pytest.raises(ConfigError, match="Unknown method"):
        tuning.search(bowl, [1.0], [1.0], method="bayes")
    with pytest.raises(ConfigError, match="at least one"):
        tuning.search(bowl, [1.0], [1.0], trials=0)
    with pytest.raises(ConfigError, match="train returned None: return the error"):
        tuning.search(lambda a, e, beat: None, [1.0], [1.0])
    for alphas in ([1.0, -1.0], [1.0, math.nan], [1.0, 2.0, 1.0]):
        with pytest.raises(ConfigError, match="Values of α are numbers of at least 0, each once"):
            tuning.search(bowl, alphas, [1.0])
    with pytest.raises(ConfigError, match="cannot be opened"):
        tuning.search(bowl, [1.0], [1.0], storage=f"sqlite:///{tmp_path}/no/such/folder/s.db")
    with pytest.raises(ConfigError, match="cannot be opened"):
        tuning.search(bowl, [1.0], [1.0], storage="nonsense://x")
    with pytest.raises(MissingExtraError, match=r"kind oracle needs the driver (cx_Oracle|oracledb)"):
        tuning.search(bowl, [1.0], [1.0], storage="oracle://x")


def test_workers_with_one_seed_never_draw_alike() -> None:
    study = optuna.create_study(sampler=tuning.GLDSampler(seed=1))
    twin = optuna.create_study(sampler=tuning.GLDSampler(seed=1))
    drawn = [study.ask().suggest_float("x", 0, 1) for _ in range(5)]
    assert len(set(drawn)) == 5
    assert drawn == [twin.ask().suggest_float("x", 0, 1) for _ in range(5)]


def one_is_slow(alpha: float, eps: float, beat) -> float:
    time.sleep(1.5 if alpha == 2 else 0)
    return alpha


def help_with_two(place: str) -> None:
    tuning.search(one_is_slow, [1.0, 2.0], [0.1], method="grid", trials=2, storage=place)


def test_who_has_nothing_left_to_try_waits(tmp_path) -> None:
    place = str(tmp_path / "trials.journal")
    workers = [multiprocessing.get_context("fork").Process(target=help_with_two, args=(place,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    facts = {"alphas": [1.0, 2.0], "epsilons": [0.1]}
    assert len(open_study(place, "tuning", facts).trials) < 20, "no trials are made up while one waits for another"


def test_a_journal_whose_last_line_is_torn_goes_on(tmp_path) -> None:
    place = tmp_path / "trials.journal"
    tuning.search(bowl, ALPHAS[:2], EPSILONS[:2], trials=3, storage=place)
    with place.open("ab") as journal:
        journal.write(b'{"op_code":4,"work')
    for _ in range(2):
        assert tuning.search(bowl, ALPHAS[:2], EPSILONS[:2], trials=4, storage=place).tried.all()


def test_a_file_that_is_no_journal_is_left_alone(tmp_path) -> None:
    place = tmp_path / "notes"
    place.write_text("to do\n")
    with pytest.raises(ConfigError, match="no journal"):
        tuning.search(bowl, ALPHAS[:2], EPSILONS[:2], trials=1, storage=place)
    assert place.read_text() == "to do\n"


def test_grids_may_be_arrays() -> None:
    found = tuning.search(bowl, np.logspace(-2, 0, 3), np.logspace(-4, 0, 3), method="grid", trials=9)
    assert found.best == (1.0, 0.01, 5.0)
