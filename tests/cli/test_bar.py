"""The bar over the epochs of many runs, and the lines above it."""

import sys

import pytest

from paretorch.cli.options import epochs_bar

_LINE = "[1/2] cs-seed0: failed: this needs an extra: pip install 'paretorch[slim]' [/x]"


def test_lines_above_the_bar_are_shown_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with epochs_bar() as bar:
        assert bar is not None
        bar.watch(1, 2)
        bar.log(_LINE)
    assert _LINE in capsys.readouterr().out
