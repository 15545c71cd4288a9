"""Jobs as tasks of a Ray cluster: on any of its nodes, one GPU each, or one core if the jobs run on CPUs.

Ray chooses the node and keeps count of its GPUs. Who has a job is decided by its claim, as everywhere: so a node may die, or
another command may work at the same jobs without Ray. All nodes need paretorch and see the run folders under the same path.
"""

import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from paretorch.errors import ConfigError, PareError
from paretorch.support.processes import start
from paretorch.workflows.queue.jobs import Job, Process
from paretorch.workflows.queue.local import WORKER
from paretorch.workflows.queue.processes import stop

_PORT = 10001  # of Ray's client server
_ANSWER = 5.0  # seconds
_COUNT_AGAIN = 5.0  # seconds
_STOP = 60.0  # seconds for a step, its checkpoint, and the way to the cluster
_DIED = -9  # as if by SIGKILL, a name that Windows lacks


@dataclass(frozen=True)
class _Task:
    """A job on the cluster, by Ray's reference to its exit code."""

    ray: Any
    reference: Any

    def poll(self) -> int | None:
        try:
            if not self.ray.wait([self.reference], timeout=0)[0]:
                return None
            return int(self.ray.get(self.reference))
        except (self.ray.exceptions.WorkerCrashedError, self.ray.exceptions.NodeDiedError):
            return _DIED
        except self.ray.exceptions.RayTaskError as error:
            raise PareError(f"A node of the Ray cluster cannot run jobs: {_cause(error)}") from error
        except self.ray.exceptions.TaskCancelledError:
            return -signal.SIGTERM
        except (self.ray.exceptions.RayError, ConnectionError) as error:
            raise PareError(
                f"The Ray cluster does not answer any more ({_cause(error)}); the same command goes on"
            ) from error


class RayEngine:
    """Runs jobs on a Ray cluster.

    Args:
        address: "auto", the cluster that this machine belongs to, or "ray://HOST:PORT"; the port is 10001 unless given.
        places: Jobs at the same time; None: as many as the cluster has GPUs, or cores, for.
        device: The device that jobs are given; "auto" and "cuda" give each job one GPU if the cluster has any.
    """

    sees_deaths = False

    def __init__(self, address: str, places: int | None = None, device: str = "auto") -> None:
        self._ray = _connect(address)
        self._places, self._counted, self._count = places, float("-inf"), 1
        found = self._ray.cluster_resources()
        self._on_gpus = device in ("auto", "cuda") and found.get("GPU", 0) >= 1
        wanted = {"num_gpus": 1, "num_cpus": 0} if self._on_gpus else {"num_cpus": 1}
        self._run = self._ray.remote(**wanted, max_retries=0)(run_job)

    @property
    def places(self) -> int:
        """Jobs at the same time; nodes may come and go."""
        if self._places is not None:
            return self._places
        if time.monotonic() - self._counted > _COUNT_AGAIN:
            found = self._ray.cluster_resources()
            self._count, self._counted = max(1, int(found.get("GPU" if self._on_gpus else "CPU", 1))), time.monotonic()
        return self._count

    def start(self, job: Job, claim: int) -> Process:
        """Give the job to the cluster."""
        words = [str(job.folder.absolute()), str(claim), *job.words]
        return _Task(self._ray, self._run.remote(words, str(job.log.absolute()), os.getcwd()))

    def stop(self, processes: Sequence[Process]) -> None:
        """Ask the jobs to end, which lets them keep their last step, and wait for them."""
        references = [each.reference for each in processes if isinstance(each, _Task)]
        with contextlib.suppress(self._ray.exceptions.RayError, ConnectionError):
            for reference in references:
                self._ray.cancel(reference)
            if references:
                self._ray.wait(references, num_returns=len(references), timeout=_STOP)


def run_job(words: list[str], log: str, folder: str) -> int:
    """On a node: run the job as a process of its own; returns its exit code.

    Args:
        words: The arguments of the worker's module.
        log: The file that its output goes to.
        folder: The folder in which the command was given.
    """
    for path in (folder, os.path.dirname(log)):
        if not os.path.isdir(path):
            raise PareError(f"{socket.gethostname()} has no {path}: run folders must be on a file system of all nodes")
    os.chdir(folder)
    environment = {**os.environ}
    environment.setdefault("OMP_NUM_THREADS", "1")
    with open(log, "ab") as file:
        process = start(WORKER, *words, log=file, environment=environment)
    try:
        return process.wait()
    finally:
        stop([process])


def _connect(address: str) -> Any:
    try:
        import ray
    except ImportError as error:
        raise ConfigError("The engine Ray needs ray: pip install 'paretorch[cluster]'") from error
    if address != "auto":
        address = _with_port(address)
    if not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            where = "on this machine" if address == "auto" else f"at {address}"
            raise ConfigError(
                f"No Ray cluster answers {where}: start one with `ray start --head`, or give another --engine"
            ) from error
    return ray


def _with_port(address: str) -> str:
    """The address with its port, once something there accepts a connection; Ray itself would try for half a minute."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port or _PORT
    except ValueError as error:
        raise ConfigError(f"{address!r} is no address of a Ray cluster: use ray://HOST or ray://HOST:PORT") from error
    if not host:
        raise ConfigError(f"{address!r} is no address of a Ray cluster: use ray://HOST or ray://HOST:PORT")
    try:
        socket.create_connection((host, port), _ANSWER).close()
    except OSError as error:
        raise ConfigError(
            f"Nothing answers at {host}:{port} ({error.strerror or error}): start Ray there with `ray start --head`, or give "
            f"another --engine"
        ) from error
    return f"ray://{host}:{port}"


def _cause(error: Exception) -> str:
    """The last line of what Ray reports."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].removeprefix("paretorch.errors.PareError: ") if lines else type(error).__name__
