"""How `shrink` shows what it does: a bar on a terminal, one line per phase elsewhere, or nothing."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Self

from paretorch.support.checks import require_one_of
from paretorch.training.progress import make_bar

MODES = ("auto", "bar", "plain", "quiet")
_LINES = 20  # of training, elsewhere than on a terminal


class ShrinkProgress:
    """Shows phases, and for each the work done, the time left, and what is known of the network.

    Args:
        mode: "bar", "plain" or "quiet"; "auto" is a bar on a terminal, and quiet elsewhere.
    """

    def __init__(self, mode: str = "auto") -> None:
        require_one_of("progress", mode, MODES)
        if mode == "auto":
            mode = "bar" if sys.stderr.isatty() and find_spec("rich") is not None else "quiet"
        self._mode = mode
        self._bar: Any = None
        self._task: Any = None
        self._phase = ""
        self._shown = 0

    def show(self, phase: str, done: int, total: int, words: str = "") -> None:
        """So much of a phase is done.

        Args:
            words: Such as those of `describe`.
        """
        if self._mode == "bar":
            self._advance(phase, done, total, words)
        elif self._mode == "plain":
            self._print(phase, done, total, words)

    def _advance(self, phase: str, done: int, total: int, words: str) -> None:
        if self._bar is None:
            self._bar = _make_bar()
            self._bar.start()
        if phase != self._phase:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task, self._phase = self._bar.add_task(phase, total=total), phase
        self._bar.update(self._task, completed=done, total=total, description=f"{phase} {words}".strip())

    def _print(self, phase: str, done: int, total: int, words: str) -> None:
        part = done * _LINES // max(total, 1) if words else 0
        if phase != self._phase or part != self._shown:
            self._phase, self._shown = phase, part
            print(f"{phase} {done}/{total} {words}".strip(), flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def describe(distance: float, zeros: float, bits: float, expected: float) -> str:
    """Return what is known while training: 'distance 0.0312 zeros 12.3 % bits 4.10 3.700 MB'."""
    size = f"{expected / 1e6:.3f} MB" if expected >= 1e6 else f"{expected / 1e3:.2f} kB"
    return f"distance {distance:.4g} zeros {100 * zeros:.1f} % bits {bits:.2f} {size}"


def _make_bar() -> Any:
    from rich.console import Console

    return make_bar(Console(stderr=True))
