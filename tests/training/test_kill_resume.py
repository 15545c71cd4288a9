"""A real process, killed with SIGKILL at random moments, ends where an undisturbed one does."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from paretorch.cli.app import app

_ARGUMENTS = (
    "train --network digits-cnn --data digits --epochs 4 --batch 128 --lr 0.05 --set pad=1 --checkpoint-steps 1"
)


def _words(out: Path) -> list[str]:
    more = ["--set", 'network_options={"width": 4}', "--out", str(out), "--resume", "--device", "cpu"]
    return [*_ARGUMENTS.split(), *more]


def _start(out: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "paretorch.cli", *_words(out)], stdout=subprocess.DEVNULL)


def _finish(out: Path) -> None:
    """To the end, in this process."""
    done = CliRunner().invoke(app, _words(out))
    assert done.exit_code == 0, done.output


def _kill_after_checkpoints(process: subprocess.Popen[bytes], checkpoint: Path, count: int, delay: float) -> bool:
    """Whether the process was killed, rather than done before."""
    seen: set[tuple[int, int]] = set()
    while process.poll() is None and len(seen) < count:
        if checkpoint.exists():
            found = checkpoint.stat()
            seen.add((found.st_ino, found.st_mtime_ns))
        time.sleep(0.001)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


def _rows(folder: Path) -> list[dict[str, object]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


@pytest.mark.faults  # tests/faults/test_same_file.py kills such a run at other moments
@pytest.mark.timeout(240)
def test_killed_runs_continue_bit_for_bit(tmp_path: Path) -> None:
    chance = random.Random(0)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    _finish(whole)
    kills = [
        _kill_after_checkpoints(
            _start(killed), killed / "checkpoint.pt", chance.randint(1, 14), chance.uniform(0, 0.01)
        )
        for _ in range(3)
    ]
    assert all(kills)
    _finish(killed)
    expected, found = (torch.load(folder / "checkpoint.pt", weights_only=True)["model"] for folder in (whole, killed))
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert _rows(whole) == _rows(killed)
    assert (whole / "model.pare").read_bytes() == (killed / "model.pare").read_bytes()
