"""The same seed gives the same file, bit for bit: in another process, after kills, from the command line and from Python."""

from pathlib import Path
from typing import Any

import pytest

from tests.faults.inject import Faults
from tests.faults.kills import Killer, begin, finish, wait
from tests.faults.scenes import SCENES, warm_up


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    warm_up()


def _outcome(name: str, folder: Path) -> Any:
    folder.mkdir()
    SCENES[name].prepare(folder)
    return finish(name, folder, folder / "log")


@pytest.mark.parametrize("name", ["train", "shrink"])
def test_processes_with_one_seed_write_one_file(name: str, tmp_path: Path) -> None:
    assert _outcome(name, tmp_path / "a") == _outcome(name, tmp_path / "b")


def test_a_run_that_is_stopped_at_every_third_call_writes_the_same_file(tmp_path: Path) -> None:
    whole = _outcome("train", tmp_path / "whole")
    folder = tmp_path / "stopped"
    folder.mkdir()
    for at in range(30, 240, 30):
        pid = begin(SCENES["train"], folder, folder / "log", Faults(folder, at, "die before"))
        assert wait(pid, 200) in (-9, 0)
    assert finish("train", folder, folder / "log") == whole


@pytest.mark.parametrize("name", ["train", "tickets", "tune"])
def test_jobs_that_are_killed_now_and_then_come_to_the_same(name: str, tmp_path: Path) -> None:
    killer = Killer(name, 7, tmp_path)
    killer.live(2)


@pytest.mark.faults
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("name", "kills"), [("train", 40), ("tickets", 40), ("tune", 40), ("shrink", 20), ("study", 8)]
)
def test_kills(name: str, kills: int, tmp_path: Path) -> None:
    killer = Killer(name, 1, tmp_path)
    while killer.kinds.total() < kills:
        killer.live(kills - killer.kinds.total())
