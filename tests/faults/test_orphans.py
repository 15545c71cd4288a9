"""A study that is killed leaves no process behind, and the next one waits for what is still ending."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from paretorch.errors import PareError
from paretorch.support.processes import start
from paretorch.training.files import alone_in
from paretorch.workflows.studies import run_study
from paretorch.workflows.studies.study import parse_study

_STUDY = """
title = "Digits"
claim = "it runs"
seeds = [0]
[recipe]
network = "digits-cnn"
network_options = {width = 2}
data = "digits"
epochs = EPOCHS
"""
_RUN = """
import sys
from pathlib import Path
from paretorch.workflows.studies import run_study
from paretorch.workflows.studies.study import parse_study
run_study(parse_study("small", sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), options=["--device", "cpu"])
"""


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # In a container nobody may collect orphans: a zombie has ended.
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


def _wait(until, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are found in /proc")
def test_runs_of_a_study_that_is_killed_end(tmp_path: Path) -> None:
    words = [_STUDY.replace("EPOCHS", "100000"), str(tmp_path / "results"), str(tmp_path / "runs")]
    study = subprocess.Popen([sys.executable, "-c", _RUN, *words])
    rows = tmp_path / "runs" / "small" / "run-seed0" / "metrics.jsonl"
    _wait(lambda: rows.exists() and rows.stat().st_size > 0)
    children = _children(study.pid)
    assert children
    study.kill()
    study.wait()
    _wait(lambda: not any(_is_there(pid) for pid in children))
    assert (rows.parent / "checkpoint.pt").exists(), "it kept its last step"


def test_a_child_without_a_parent_that_watches_goes_on(tmp_path: Path) -> None:
    with open(tmp_path / "log", "ab") as log:
        assert start("paretorch.cli", "--version", log=log).wait() == 0
    assert (tmp_path / "log").read_text().startswith("pare ")


def test_a_study_waits_for_a_process_of_before(tmp_path: Path) -> None:
    study, folder = parse_study("small", _STUDY.replace("EPOCHS", "1")), tmp_path / "runs" / "small" / "run-seed0"
    held, over = threading.Event(), threading.Event()

    def orphan() -> None:
        with alone_in(folder):
            (folder / "log.txt").write_text("pare: words of another process\n")
            held.set()
            over.wait()

    thread = threading.Thread(target=orphan)
    thread.start()
    held.wait()
    threading.Timer(3.0, over.set).start()
    summary = run_study(study, tmp_path / "results", tmp_path / "runs", options=["--device", "cpu"])
    thread.join()
    assert summary["settings"]["run"]["test_accuracy"]["n"] == 1


def test_a_process_of_before_that_stays_is_told_and_not_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARE_PATIENCE", "1")
    study, folder = parse_study("small", _STUDY.replace("EPOCHS", "1")), tmp_path / "runs" / "small" / "run-seed0"
    told: list[str] = []
    with alone_in(folder):
        (folder / "log.txt").write_text("pare: words of another process\n")
        with pytest.raises(PareError, match="1 of 1 runs failed"):
            run_study(study, tmp_path / "results", tmp_path / "runs", options=["--device", "cpu"], log=told.append)
    assert "Another process is training in" in told[0]


def test_sigterm_reaches_a_child_whose_parent_is_gone_before_it_begins(tmp_path: Path) -> None:
    code = "from paretorch.support.processes import end_with_parent; end_with_parent(); import time; time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PARE_PARENT": "999999999"})
    assert child.wait(60) == -signal.SIGTERM
