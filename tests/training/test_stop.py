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
from torch import Tensor, nn
from typer.testing import CliRunner

from paretorch.cli.app import app
from paretorch.training.tasks import Batch

from .blobs import Blobs, Make, rows_of

_ARGUMENTS = "train --network digits-cnn --data digits --epochs 4 --batch 16 --lr 0.05 --set pad=1 --device cpu"


def _words(out: Path) -> list[str]:
    return [*_ARGUMENTS.split(), "--set", 'network_options={"width": 4}', "--out", str(out), "--resume"]


def _start(out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "paretorch.cli", *_words(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _finish(out: Path) -> None:
    """To the end, in this process."""
    done = CliRunner().invoke(app, _words(out))
    assert done.exit_code == 0, done.output


def _rows(folder: Path) -> list[dict[str, object]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


@pytest.mark.timeout(240)
def test_a_run_that_is_told_to_stop_loses_no_step(tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    _finish(whole)
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
    _finish(stopped)
    assert _rows(whole) == _rows(stopped)
    assert (whole / "model.pare").read_bytes() == (stopped / "model.pare").read_bytes()


class Told(Blobs):
    """Sends itself so many signals while the sixth step, the second of an epoch, is under way."""

    def __init__(self, signals: int) -> None:
        super().__init__()
        self._signals = signals

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
        for _ in range(self._signals if self.taken == 5 else 0):
            os.kill(os.getpid(), signal.SIGTERM)
        return super().loss(model, batch)


@pytest.mark.parametrize(("signals", "taken", "kept"), [(1, 6, (1, 2)), (2, 5, (1, 0))])
def test_a_second_signal_does_not_wait_for_the_step(
    make: Make, signals: int, taken: int, kept: tuple[int, int]
) -> None:
    trainer = make()
    trainer.task = trainer.stepper._task = task = Told(signals)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert task.taken == taken
    stored = torch.load(trainer.folder.checkpoint, weights_only=True)
    assert (stored["epoch"], stored["step"]) == kept
    assert signal.getsignal(signal.SIGTERM) is before


def test_threads_train_as_before(make: Make) -> None:
    trainer = make()
    thread = threading.Thread(target=trainer.run)
    thread.start()
    thread.join()
    assert len(rows_of(trainer)) == 3
