"""A real process that gets a SIGTERM keeps the step it is at, says how to go on, and goes on from there."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from paretorch.training.stop import Stop

_ARGUMENTS = "train --network digits-cnn --data digits --epochs 4 --batch 16 --lr 0.05 --set pad=1 --device cpu"


def _start(out: Path) -> subprocess.Popen[str]:
    words = [*_ARGUMENTS.split(), "--set", 'network_options={"width": 4}']
    return subprocess.Popen(
        [sys.executable, "-m", "paretorch.cli", *words, "--out", str(out), "--resume"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _rows(folder: Path) -> list[dict[str, object]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


@pytest.mark.timeout(120)
def test_a_run_that_is_told_to_stop_loses_no_step(tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert _start(whole).wait() == 0
    process = _start(stopped)
    metrics = stopped / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_text().count("\n")):
        time.sleep(0.001)
    time.sleep(0.05)  # into the second epoch, whose steps no checkpoint would hold otherwise
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate()
    assert process.returncode == 130
    assert f"--out {stopped} --resume" in told
    kept = torch.load(stopped / "checkpoint.pt", weights_only=True)
    assert len(_rows(stopped)) < 4
    assert kept["step"] > 0
    assert _start(stopped).wait() == 0
    assert _rows(whole) == _rows(stopped)
    assert (whole / "model.pare").read_bytes() == (stopped / "model.pare").read_bytes()


def test_a_second_signal_has_its_usual_effect() -> None:
    class Ended(Exception):
        pass

    def end(*_: object) -> None:
        raise Ended

    before = signal.signal(signal.SIGTERM, end)
    try:
        with Stop() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.asked
            with pytest.raises(Ended):
                os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is end
    finally:
        signal.signal(signal.SIGTERM, before)


def test_threads_train_as_before() -> None:
    heard: list[bool] = []

    def train() -> None:
        with Stop() as stop:
            heard.append(stop.asked)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert heard == [False]
