"""A word to stop: the SIGTERM of a batch system whose time is up. The step that is under way ends, and is kept."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class Stop:
    """While entered, notes that the process is to end; whoever looks at `asked` ends it when nothing is lost.

    A second signal has its usual effect. Only the main thread hears signals: elsewhere nothing changes.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._note) or signal.SIG_DFL
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self._restore()

    def _restore(self) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
            self._before = None
