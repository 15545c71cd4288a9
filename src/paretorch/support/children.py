"""Starting Python modules of this package in processes of their own, which end when the one that started them does."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import IO, Any

_PARENT = "PARE_PARENT"
_LOOK = 0.5  # seconds between two looks at the parent


def module_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of this package, to be given to `subprocess`.

    `python -m` puts the current folder first on the path, so a paretorch.py (or numpy.py) beside a file that somebody sent
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
