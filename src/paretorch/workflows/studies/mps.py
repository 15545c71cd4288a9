"""NVIDIA's multi-process service around a study: kernels of several processes then share a GPU instead of taking turns."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator


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
