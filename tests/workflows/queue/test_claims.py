"""Claims: one worker per job, silence by the observer's own clock, and no claim that comes back."""

import multiprocessing
import os
import signal
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from paretorch.errors import ConfigError, PareError
from paretorch.workflows.queue import Claims, Silence, claimed, owner_of, patience


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_job_is_in_one_hand_at_a_time(tmp_path: Path) -> None:
    with claimed(Claims(), tmp_path / "a") as first, claimed(Claims(), tmp_path / "b") as other:
        assert first is not None
        assert other is not None
        assert Claims().take(tmp_path / "a") is None
        assert str(os.getpid()) in owner_of(tmp_path / "a")
    assert owner_of(tmp_path / "a") == ""
    with claimed(Claims(), tmp_path / "a") as again:
        assert again is not None
        assert again.taken_from == ""


def test_a_silent_worker_loses_its_job_to_one_other(tmp_path: Path) -> None:
    lost: list[str] = []
    clock = Clock()
    silent = Claims().take(tmp_path, on_lost=lost.append)
    assert silent is not None
    watchers = [Claims(Silence(60.0, clock)) for _ in range(3)]
    assert all(watcher.take(tmp_path) is None for watcher in watchers)
    clock.now = 61.0
    taken = [watcher.take(tmp_path, on_lost=lost.append) for watcher in watchers]
    (winner,) = [each for each in taken if each is not None]
    assert str(os.getpid()) in winner.taken_from
    with pytest.raises(PareError, match="taken over by another worker"):
        silent.check()
    silent.release()
    assert owner_of(tmp_path) != "", "who lost a job does not free it"
    winner.check()
    winner.release()


def test_clocks_that_jump_or_differ_do_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with claimed(Claims(), tmp_path) as mine:
        assert mine is not None
        for when in (0.0, 4e9):
            monkeypatch.setattr(time, "time", lambda when=when: when)
            os.utime(tmp_path / ".claim-1", (when, when))
            assert Claims().take(tmp_path) is None


def _race(folder: Path, together: Barrier, won: Path) -> None:
    together.wait()
    claim = Claims().take(folder, on_lost=lambda error: None)
    if claim is not None:
        (won / str(os.getpid())).touch()
    together.wait()  # a claim whose process has ended is free again


def test_of_many_that_try_at_once_one_has_it(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    together = context.Barrier(12)
    for name in ("folder", "won"):
        (tmp_path / name).mkdir()
    racers = [context.Process(target=_race, args=(tmp_path / "folder", together, tmp_path / "won")) for _ in range(12)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert len(list((tmp_path / "won").iterdir())) == 1


def _hold(folder: Path) -> None:
    Claims().take(folder)
    time.sleep(600)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_a_job_is_taken_over_and_who_returns_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: signal.Signals
) -> None:
    monkeypatch.setenv("PARE_PATIENCE", "0.6")
    holder = multiprocessing.get_context("fork").Process(target=_hold, args=(tmp_path,))
    holder.start()
    while not owner_of(tmp_path):
        time.sleep(0.01)
    os.kill(holder.pid, end)  # type: ignore[arg-type]  # of a started process
    claims, claim = Claims(), None
    while claim is None:
        claim = claims.take(tmp_path)
        time.sleep(0.02)
    assert claim.taken_from.endswith(f"process {holder.pid}")
    if end == signal.SIGSTOP:
        os.kill(holder.pid, signal.SIGCONT)  # type: ignore[arg-type]
    holder.join(30)
    assert holder.exitcode == (75 if end == signal.SIGSTOP else -signal.SIGKILL)
    claim.check()
    claim.release()


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf", "nan"])
def test_a_wrong_patience_is_named(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("PARE_PATIENCE", text)
    with pytest.raises(ConfigError, match="PARE_PATIENCE"):
        patience()


def test_behind_a_slow_storage_one_look_tells_little() -> None:
    """The observer may have waited for the storage itself, and a worker that waits for it is alive."""
    now = [0.0]
    silence = Silence(8.0, lambda: now[0], is_slow=True)
    assert not silence.lasts("worker", 0)
    for _ in range(7):
        now[0] += 100.0  # each look took so long
        assert not silence.lasts("worker", 0)
    now[0] += 100.0
    assert silence.lasts("worker", 0), "eight looks are enough, while no interval of beats is known"


def test_who_beats_slowly_is_waited_for_longer_but_not_for_ever() -> None:
    now = [0.0]
    silence = Silence(8.0, lambda: now[0], is_slow=True)
    for beat in range(4):  # every six seconds, seen every second
        for _ in range(6):
            now[0] += 1.0
            assert not silence.lasts("slow", beat)
    silent = 0
    while not silence.lasts("slow", 3):
        now[0] += 1.0
        silent += 1
    assert 18 <= silent <= 24, "four times the interval of its beats"
    for beat in range(4, 8):
        for _ in range(20):
            now[0] += 1.0
            silence.lasts("slow", beat)
    silent = 0
    while not silence.lasts("slow", 7):
        now[0] += 1.0
        silent += 1
    assert silent <= 48, "six times the patience at most"
