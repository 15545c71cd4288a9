"""Two real processes that train together over gloo."""

import gc
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

PATIENCE = 240  # seconds, for what takes ten


def meet(folder: str | Path, rank: int, work: Callable[[], None]) -> None:
    """Do `work` as one of two ranks.

    Whatever holds on to the group must be gone before the group is: the last holder waits, with the interpreter
    locked, for a thread that wants the interpreter. So `work` is a function, and its garbage is collected here.
    """
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    work()
    gc.collect()
    dist.destroy_process_group()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, for ranks to meet at."""
    found = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in found]
    for one in found:
        one.close()
    return ports


def both_ranks(module: str, folder: Path, *arguments: str) -> None:
    """Run `python -m module FOLDER *arguments RANK` for both ranks; when one fails, say what both said."""
    said = [folder / f"{rank}.said" for rank in range(2)]
    processes = []
    for rank, path in enumerate(said):
        command = [sys.executable, "-m", module, str(folder), *arguments, str(rank)]
        with path.open("w") as stderr:
            processes.append(subprocess.Popen(command, stderr=stderr))
    patience = time.monotonic() + PATIENCE
    while None in (codes := [process.poll() for process in processes]):
        if any(codes) or time.monotonic() > patience:
            break
        time.sleep(0.05)
    for process in processes:
        process.kill()
        process.wait()
    words = "\n".join(path.read_text() for path in said)
    assert codes == [0, 0], f"the ranks ended with {codes} (None: still waiting)\n{words}"
