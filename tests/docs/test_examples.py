"""The examples run as they are written, and do what they say."""

import re
import runpy
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

_EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[str], str]:
    """Runs an example in a folder of its own; returns what it prints. It must not warn."""

    def begin(name: str) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [name])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings(
                "ignore", category=DeprecationWarning
            )  # as Python does outside of the script itself
            runpy.run_path(str(_EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return begin


def number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found, text
    return float(found[1].replace(",", ""))


def test_own_loop(run: Callable[[str], str], tmp_path: Path) -> None:
    told = run("own_loop.py")
    assert number(r"\(([\d,]+) bytes\)", told) <= 4000
    assert (tmp_path / "digits.pare").stat().st_size <= 4000
    assert number(r"accuracy +([\d.]+)%", told) > 95


def test_language_model(run: Callable[[str], str]) -> None:
    told = run("language_model.py")
    assert number(r"bits per weight +([\d.]+) without", told) == pytest.approx(4.0, abs=0.05)
    assert number(r"([\d.]+) x smaller", told) > 7


def test_fewer_channels(run: Callable[[str], str], tmp_path: Path) -> None:
    told = run("fewer_channels.py")
    assert number(r"accuracy +([\d.]+)%", told) > 95
    assert number(r"MACs +(\d+) k per", told) < 560
    assert (tmp_path / "digits.onnx").exists()


def test_every_example_is_tried_here() -> None:
    tried = Path(__file__).read_text()
    assert all(f'"{path.name}"' in tried for path in _EXAMPLES.glob("*.py"))
