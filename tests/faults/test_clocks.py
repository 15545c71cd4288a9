"""Clocks that jump: nothing waits longer, nobody is given up, nothing that is being written is removed."""

import os
import time
from pathlib import Path

import pytest

from paretorch.support.files import replacing, sweep
from paretorch.workflows import tuning
from paretorch.workflows.queue import Claims, Silence
from tests.training.blobs import Make, state_of
from tests.training.conftest import make as make

DAY = 86_400.0


@pytest.fixture(
    params=[-400 * DAY, -3600.0, 3600.0, 400 * DAY], ids=["a year back", "an hour back", "an hour on", "a year on"]
)
def jump(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """From now on every second look at the wall clock shows another time."""
    real, looks = time.time, [0]

    def jumping() -> float:
        looks[0] += 1
        return real() + (request.param if looks[0] % 2 else 0.0)

    monkeypatch.setattr(time, "time", jumping)
    return float(request.param)


def test_a_worker_that_beats_is_never_given_up(jump: float, tmp_path: Path) -> None:
    claim = Claims().take(tmp_path)
    assert claim is not None
    silence = Silence(60.0)
    assert Claims(silence).take(tmp_path) is None
    assert Claims(silence).take(tmp_path) is None
    claim.release()
    again = Claims(silence).take(tmp_path)
    assert again is not None
    again.release()


def test_silence_is_measured_by_a_clock_of_its_own(jump: float) -> None:
    now = [0.0]
    silence = Silence(60.0, clock=lambda: now[0])
    assert not silence.lasts("worker", 1)
    now[0] = 59.0
    assert not silence.lasts("worker", 1)
    now[0] = 61.0
    assert silence.lasts("worker", 1)
    assert not silence.lasts("worker", 2)


def test_a_file_that_is_being_written_is_not_swept(jump: float, tmp_path: Path) -> None:
    with replacing(tmp_path / "file") as temporary:
        Path(temporary).write_bytes(b"x")
        os.utime(temporary, (0, 0))
        sweep(tmp_path)
        assert Path(temporary).exists()
    assert (tmp_path / "file").read_bytes() == b"x"


def test_a_search_tries_every_setting_once(jump: float, tmp_path: Path) -> None:
    tried: list[float] = []
    found = tuning.search(
        lambda a, e, beat: tried.append(a) or a, [1.0, 2.0, 3.0], [1.0], method="grid", trials=3, storage=tmp_path / "j"
    )
    assert found.tried.all()
    assert sorted(tried) == [1.0, 2.0, 3.0]


def test_a_run_is_the_same(jump: float, make: Make) -> None:
    first, second = make(name="a"), make(name="b")
    first.run()
    second.run()
    assert all((value == state_of(second)[name]).all() for name, value in state_of(first).items())
