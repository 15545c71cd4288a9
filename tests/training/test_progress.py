"""How a run tells of itself."""

import io

import pytest
from rich.console import Console

from paretorch.training.progress import Progress, brief, describe, make_bar

_ROW = {"phase": "search", "epoch": 3, "loss": 0.41234, "accuracy": 0.871, "sparsity": 0.5, "bits": 3.2, "seconds": 1.0}


def test_a_line_holds_what_is_known() -> None:
    assert describe(_ROW, 20) == "search 3/20  loss 0.4123  accuracy 87.10 %  sparsity 50.00 %  bits 3.2  1.00 s"
    assert brief(_ROW, 20) == "3/20 zeros 50.0 % bits 3.2 loss 0.412 acc 87.1 %"


@pytest.mark.parametrize(("mode", "lines"), [("plain", 1), ("auto", 1), ("quiet", 0)])
def test_without_a_terminal_it_is_a_line_an_epoch(mode: str, lines: int, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(mode) as progress:
        progress.start(20, 10, 0)
        progress.advance(10)
        progress.epoch(_ROW)
    assert len(capsys.readouterr().out.splitlines()) == lines


def test_what_takes_long_is_told_first(capsys: pytest.CaptureFixture[str]) -> None:
    for mode in ("plain", "bar", "quiet"):
        with Progress(mode) as progress:
            progress.start(20, 10, 0, "compiling")
        assert ("compiling" in capsys.readouterr().out) == (mode != "quiet")


def test_a_bar_shows_the_row(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("bar") as progress:
        progress.start(20, 10, 20)
        progress.advance(10)
        progress.epoch(_ROW)
    assert "3/20 zeros 50.0 %" in capsys.readouterr().out


def test_a_validation_run_says_so() -> None:
    row = {"phase": "train", "epoch": 1, "loss": 1.0, "test_accuracy": 0.5}
    assert describe(row, 2, "validation") == "train 1/2  loss 1  validation accuracy 50.00 %"
    assert brief(row, 2, "validation") == "1/2 validation 50.0 % loss 1"


def test_a_regression_has_its_loss() -> None:
    row = {"phase": "train", "epoch": 1, "loss": 1.0, "test_loss": 0.25}
    assert describe(row, 2) == "train 1/2  loss 1  test loss 0.25"
    assert brief(row, 2) == "1/2 test loss 0.25 loss 1"
    assert "test loss" not in describe({**row, "test_perplexity": 3.0}, 2)


@pytest.mark.parametrize("width", [60, 80])
def test_the_time_left_is_readable_on_a_narrow_terminal(width: int) -> None:
    long = {**_ROW, "epoch": 128, "test_accuracy": 0.86}
    screen = io.StringIO()
    bar = make_bar(Console(file=screen, width=width, force_terminal=True, color_system=None, legacy_windows=False))
    task = bar.add_task(brief(long, 350), total=1000)
    bar.update(task, completed=250)
    bar.console.print(bar.get_renderable())
    line = screen.getvalue().splitlines()[-1]
    assert "0:00:00 in, -:--:-- left" in line
    assert "128/350 test 86.0 %" in line
    assert ("zeros 50.0 % bits 3.2" in line) == (width == 80)
    assert len(line) <= width
