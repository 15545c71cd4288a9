"""Lines on a terminal are broken between words, and nowhere else."""

import sys

import pytest

from paretorch.cli.lines import fitted, say

_LINE = "a line of some words, a-long-name-of-a-file/model.pare, 1,205 bytes"


def test_words_stay_whole() -> None:
    lines = fitted(_LINE, 20).splitlines()
    assert " ".join(lines) == _LINE
    assert [line for line in lines if len(line) > 20] == ["a-long-name-of-a-file/model.pare,"]


@pytest.mark.parametrize(("is_terminal", "count"), [(True, 4), (False, 1)])
def test_only_terminals_get_broken_lines(
    is_terminal: bool, count: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    say(_LINE, err=True)
    assert len(capsys.readouterr().err.splitlines()) == count
