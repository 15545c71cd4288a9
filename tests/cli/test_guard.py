"""Warnings of ours are a line on stderr, those of others stay what they are; Ctrl-C is no traceback, however early."""

import sys
import warnings

import pytest

from paretorch.cli import main
from paretorch.cli.app import guarded
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


def test_an_interrupt_while_torch_is_imported_ends_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "paretorch.cli.app":
                raise KeyboardInterrupt

    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # which main sets, and tests after this one must not have
    monkeypatch.delitem(sys.modules, "paretorch.cli.app", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted, *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
