"""Warnings of ours are a line on stderr; those of others stay what they are."""

import warnings

import pytest

from paretorch.cli.guard import guarded
from paretorch.errors import MissedTargetWarning


def test_our_warnings_are_told_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    @guarded
    def command() -> None:
        warnings.simplefilter("always")
        warnings.warn("target=0.5: 0.6 is dropped", MissedTargetWarning, stacklevel=1)
        warnings.warn("old", DeprecationWarning, stacklevel=1)

    with pytest.warns(DeprecationWarning, match="old"):
        command()
    assert capsys.readouterr().err.splitlines() == ["pare: warning: target=0.5: 0.6 is dropped"]
