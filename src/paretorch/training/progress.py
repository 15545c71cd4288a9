"""What is shown of a run: a bar on a terminal, one line per epoch elsewhere, or nothing."""

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Self

_HEADLINES = ("test_accuracy", "test_f1", "test_bleu", "test_bpc", "test_perplexity", "test_frechet")
_SHOWN = ("loss", "accuracy", *_HEADLINES, "sparsity", "bits", "activation_bits")


class Progress:
    """Shows epochs and, on a terminal, the steps within them with the time left.

    held_out: what metrics are over, "test" or "validation".
    """

    def __init__(self, mode: str = "auto", held_out: str = "test") -> None:
        self._held_out = held_out
        if mode == "auto":
            mode = "bar" if sys.stdout.isatty() and find_spec("rich") is not None else "plain"
        self._mode = mode
        self._bar: Any = None
        self._task: Any = None
        self._epochs = 0

    def start(self, epochs: int, steps: int, done: int, first: str = "") -> None:
        """Begin at step `done` of a run of `epochs` epochs with `steps` steps each. first: what takes long before that."""
        self._epochs = epochs
        if self._mode == "plain" and first:
            print(first, flush=True)
        if self._mode != "bar":
            return
        self._bar = make_bar()
        self._task = self._bar.add_task(first or "starting", total=epochs * steps, completed=done)
        self._bar.start()

    def advance(self, steps: int = 1) -> None:
        """So many more steps are done."""
        if self._bar is not None:
            self._bar.advance(self._task, steps)

    def epoch(self, row: dict[str, Any]) -> None:
        """A row of metrics is complete."""
        if self._bar is not None:
            self._bar.update(self._task, description=brief(row, self._epochs, self._held_out))
        elif self._mode == "plain":
            print(describe(row, self._epochs, self._held_out), flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def make_bar(console: Any = None) -> Any:
    """A bar of rich: the times first, since a narrow terminal cuts the end of the line: '0:01:10 in, 0:00:20 left'."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.table import Column

    columns = (
        BarColumn(bar_width=8, table_column=Column(min_width=8)),
        TimeElapsedColumn(table_column=Column(no_wrap=True, min_width=7)),
        TextColumn("in,", table_column=Column(no_wrap=True, min_width=3)),
        TimeRemainingColumn(table_column=Column(no_wrap=True, min_width=7)),
        TextColumn("left", table_column=Column(no_wrap=True, min_width=4)),
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
    )
    return Progress(*columns, console=console, refresh_per_second=4, expand=True)


def describe(row: dict[str, Any], epochs: int, held_out: str = "test") -> str:
    """One line of a row: 'search 3/20  loss 0.4123  accuracy 87.10 %  sparsity 50.00 %  bits 3.20'."""
    parts = [f"{row['phase']} {row['epoch']}/{epochs}"]
    for name in (*_SHOWN, *(["test_loss"] if headline(row) == "test_loss" else [])):
        if name in row:
            words = name.replace("test_", f"{held_out}_").replace("_", " ")
            parts.append(f"{words} {format_metric(name, row[name])}")
    if "seconds" in row:
        parts.append(f"{row['seconds']:.2f} s")
    return "  ".join(parts)


def headline(result: Mapping[str, Any]) -> str:
    """The name of the metric that sums a run up; every task has one."""
    return next((name for name in _HEADLINES if name in result), "test_loss")


def format_metric(name: str, value: float) -> str:
    """A metric as people read it: shares in per cent."""
    return f"{100 * value:.2f} %" if name.endswith(("accuracy", "sparsity", "f1")) else f"{value:.4g}"


def brief(row: dict[str, Any], epochs: int, held_out: str = "test") -> str:
    """What fits beside a bar, in order of what is missed most if it is cut: '3/20 test 86.0 % zeros 50.0 % bits 3.2 loss 0.412 acc 87.1 %'."""
    best = {"test_loss": f"{held_out} loss"} if headline(row) == "test_loss" else {"test_accuracy": held_out}
    labels = {**best, "sparsity": "zeros", "bits": "bits", "loss": "loss", "accuracy": "acc"}
    parts = [f"{row['epoch']}/{epochs}"]
    for name, label in labels.items():
        if name in row:
            percent = name.endswith(("accuracy", "sparsity"))
            parts.append(f"{label} {100 * row[name]:.1f} %" if percent else f"{label} {row[name]:.3g}")
    return " ".join(parts)
