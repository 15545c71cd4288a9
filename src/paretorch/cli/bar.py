"""A progress bar over the epochs of many runs."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any


class EpochsBar:
    """Shows how many epochs of all runs are done, and the time left."""

    def __init__(self, progress: Any) -> None:
        self._progress = progress
        self._task = progress.add_task("epochs", total=None)

    def tell(self, words: str) -> None:
        """A line above the bar, as it is: brackets in it are no markup."""
        self._progress.console.print(words, markup=False, highlight=False, soft_wrap=True)

    def watch(self, done: int, total: int) -> None:
        """So many epochs are done, of so many."""
        self._progress.update(self._task, completed=done, total=total)


@contextlib.contextmanager
def epochs_bar() -> Iterator[EpochsBar | None]:
    """A bar on a terminal, None elsewhere."""
    if not sys.stdout.isatty():
        yield None
        return
    from rich.progress import Progress

    with Progress() as progress:
        yield EpochsBar(progress)
