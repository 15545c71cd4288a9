"""The processes of a queue: how they end, and NVIDIA's multi-process service, with which they share a GPU at the same time."""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence

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


@contextlib.contextmanager
def mps(wanted: bool) -> Iterator[bool]:
    """Start a private MPS daemon and stop it at the end; gives whether it runs.

    Where the daemon is missing or will not start (in some containers), processes still share the GPU, more slowly.
    """
    control = shutil.which("nvidia-cuda-mps-control")
    if not wanted or control is None or "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        yield False
        return
    with tempfile.TemporaryDirectory() as folder:
        places = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        for place in places.values():
            os.mkdir(place)
        os.environ.update(places)
        try:
            started = subprocess.run([control, "-d"], capture_output=True, check=False).returncode == 0
            if not started:
                _forget(places)
            yield started
        finally:
            if "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
                subprocess.run([control], input=b"quit\n", capture_output=True, check=False)
                _forget(places)


def _forget(places: dict[str, str]) -> None:
    for name in places:
        os.environ.pop(name, None)
