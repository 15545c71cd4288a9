"""This process and those it starts: modules as processes, SIGTERM, suppressed output."""

import contextlib
import io
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

# The exporters have dozens of loggers with levels of their own below these. onnxruntime's quantizer logs to the root, "".
_LOGGERS = ("", "torch", "onnxscript", "onnx_ir")
_LOCK = threading.RLock()
_PARENT = "PARE_PARENT"
_LOOK = 0.5  # seconds between two looks at the parent


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this package, for `subprocess`.

    `python -m` puts the current folder first on the path, so a paretorch.py (or numpy.py) beside a file from somebody else
    would be run. `-P` leaves that folder out.

    Args:
        module: Its full name, such as "paretorch.cli".
        arguments: Words of its command line.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def start(
    module: str, *arguments: str, log: IO[Any], environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a module that calls `end_with_parent`; it ends when this process does, however that ends.

    Args:
        module: Its full name.
        arguments: Words of its command line.
        log: Where its output goes.
        environment: Its environment; None: that of this process.
    """
    own = {**(os.environ if environment is None else environment), _PARENT: str(os.getpid())}
    return subprocess.Popen(module_command(module, *arguments), stdout=log, stderr=log, env=own)


def end_with_parent() -> None:
    """If `start` began this process, send it SIGTERM once the process that did is gone.

    A parent that is killed cannot end its children. Training would go on, unseen, in a folder that the next command wants.
    """
    parent = os.environ.pop(_PARENT, "")
    if parent.isdecimal():
        threading.Thread(target=_watch, args=(int(parent),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def on_sigterm(handler: Callable[..., object]) -> Iterator[None]:
    """Call `handler` on SIGTERM, which batch systems send when the time is up, instead of ending the process.

    Only the main thread receives signals: in other threads this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, handler) or signal.SIG_DFL
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def suppress_output() -> Iterator[None]:
    """Suppress what exporters print and log: the graph that they cannot export, advice, warnings. Errors still raise.

    It acts on the whole process, so one thread at a time enters.
    """
    with _LOCK:
        names = [name for name in logging.root.manager.loggerDict if name.split(".")[0] in _LOGGERS]
        enabled = [logger for logger in map(logging.getLogger, names) if not logger.disabled]
        levels = [(logger, logger.level) for logger in map(logging.getLogger, _LOGGERS)]  # for loggers made inside
        output = io.StringIO()
        try:
            for logger in enabled:
                logger.disabled = True
            for logger, _ in levels:
                logger.setLevel(logging.CRITICAL)
            with warnings.catch_warnings(), contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
                warnings.simplefilter("ignore")
                yield
        finally:
            for logger in enabled:
                logger.disabled = False
            for logger, level in levels:
                logger.setLevel(level)
