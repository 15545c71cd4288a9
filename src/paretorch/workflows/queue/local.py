"""Jobs as processes of this machine, one GPU each, round robin."""

import os
import subprocess
import threading
from collections.abc import Sequence

import torch

from paretorch.support.processes import start
from paretorch.workflows.queue.jobs import Job, Process
from paretorch.workflows.queue.processes import stop

WORKER = "paretorch.cli.worker"
"""The module that runs a job: its arguments are the job's folder, the number of the claim, and words of `pare`."""


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    names = [str(index) for index in range(count)] if named is None else [each.strip() for each in named.split(",")]
    return names[:count]


class LocalEngine:
    """Runs jobs as processes of this machine, which end when this process does.

    Args:
        places: Jobs at the same time.
        device: The device that jobs are given; "auto" and "cuda" give each job one GPU, the one with the fewest jobs.
    """

    sees_deaths = True

    def __init__(self, places: int, device: str = "auto") -> None:
        self.places = places
        self._gpus = visible_gpus() if device in ("auto", "cuda") else []
        self._on: dict[subprocess.Popen[bytes], str] = {}
        self._lock = threading.Lock()  # threads may share an engine

    def start(self, job: Job, claim: int) -> subprocess.Popen[bytes]:
        """Start a process for the job."""
        threads = str(max(1, (os.cpu_count() or 1) // self.places))
        environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": threads}
        environment.setdefault("OMP_NUM_THREADS", threads)
        environment.setdefault("PARE_WORKERS", threads)  # what reads images for a job
        with self._lock, open(job.log, "ab") as log:
            gpu = self._next_gpu()
            if gpu:
                environment["CUDA_VISIBLE_DEVICES"] = gpu
            process = start(WORKER, str(job.folder), str(claim), *job.words, log=log, environment=environment)
            self._on[process] = gpu
        return process

    def stop(self, processes: Sequence[Process]) -> None:
        """Ask the processes to end, which lets them keep their last step; kill those that take too long."""
        stop([each for each in processes if isinstance(each, subprocess.Popen)])

    def _next_gpu(self) -> str:
        """The GPU with the fewest running jobs; empty if there is none."""
        self._on = {process: gpu for process, gpu in self._on.items() if process.poll() is None}
        running = list(self._on.values())
        return min(self._gpus, key=running.count, default="")
