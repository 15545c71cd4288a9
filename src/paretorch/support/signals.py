"""SIGTERM, which batch systems send when the time is up, while something is under way."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def on_sigterm(handler: Callable[..., object]) -> Iterator[None]:
    """Call `handler` in place of ending the process. Only the main thread hears signals: elsewhere nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, handler) or signal.SIG_DFL
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
