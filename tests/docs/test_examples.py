"""The examples run as they are written, and do what they say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

_EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(_EXAMPLES / name)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Warning:" not in done.stderr, done.stderr
    return done.stdout


def number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found, text
    return float(found[1].replace(",", ""))


def test_own_loop(tmp_path: Path) -> None:
    told = run("own_loop.py", tmp_path)
    assert number(r"\(([\d,]+) bytes\)", told) <= 4000
    assert (tmp_path / "digits.pare").stat().st_size <= 4000
    assert number(r"accuracy +([\d.]+)%", told) > 95


def test_language_model(tmp_path: Path) -> None:
    told = run("language_model.py", tmp_path)
    assert number(r"bits per weight +([\d.]+) without", told) == pytest.approx(4.0, abs=0.05)
    assert number(r"([\d.]+) x smaller", told) > 7


def test_fewer_channels(tmp_path: Path) -> None:
    told = run("fewer_channels.py", tmp_path)
    assert number(r"accuracy +([\d.]+)%", told) > 95
    assert number(r"MACs +(\d+) k per", told) < 560
    assert (tmp_path / "digits.onnx").exists()


def test_every_example_is_tried_here() -> None:
    tried = Path(__file__).read_text()
    assert all(f'"{path.name}"' in tried for path in _EXAMPLES.glob("*.py"))
