"""Ends the processes of a study so that they keep their last step."""

import contextlib
import subprocess
import time
from collections.abc import Sequence

_PATIENCE = 30.0  # seconds for a step and its checkpoint


def stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask all to end, which lets them keep their last step; end those that take too long."""
    for process in processes:
        process.terminate()
    end = time.monotonic() + _PATIENCE
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, end - time.monotonic()))
        process.kill()
        process.wait()
