"""Latency, measured where nothing else runs: each runtime in a process of its own, several rounds, medians.

The network travels as a file (torch.export, ONNX), never pickled. A network that torch.export refuses is timed in this
process instead, and the result says so.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paretorch.errors import ConfigError, PareError

_PATIENCE = 600  # seconds a measuring process may take


@dataclass(frozen=True)
class Latency:
    """Milliseconds a batch: the median of the rounds' medians, and the lowest and highest of these."""

    name: str
    runtime: str
    median_ms: float
    low_ms: float
    high_ms: float
    rounds: int
    batch: int
    threads: int
    isolated: bool


def measure_latency(
    model: nn.Module,
    example: Tensor,
    *,
    name: str = "model",
    rounds: int = 5,
    seconds: float = 0.3,
    threads: int | None = None,
) -> list[Latency]:
    """Time the module on the CPU under torch, and under onnxruntime where the extra `export` is installed.

    rounds: how often; seconds: of each round. Compare only what was measured in one call or one report.
    """
    if rounds < 1 or seconds <= 0:
        raise ConfigError(f"rounds must be at least 1 and seconds above 0, not {rounds} and {seconds}")
    threads = threads or torch.get_num_threads()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for runtime, write in (("torch", _write_torch), ("onnxruntime", _write_onnx)):
            if runtime == "onnxruntime" and not (find_spec("onnxruntime") and find_spec("onnxscript")):
                continue
            medians = _isolated(Path(folder), write, model, example, runtime, rounds, seconds, threads)
            isolated = medians is not None
            if medians is None and runtime == "torch":
                medians = _here(model, example, rounds, seconds)
            if medians:
                middle = statistics.median(medians)
                spread = (min(medians), max(medians), rounds, len(example), threads, isolated)
                found.append(Latency(name, runtime, middle, *spread))
    return found


def timed_rounds(call: Callable[[], object], rounds: int, seconds: float) -> list[float]:
    """Median milliseconds of each round, after a warm-up."""
    for _ in range(3):
        call()
    medians = []
    for _ in range(rounds):
        times: list[float] = []
        end = time.perf_counter() + seconds
        while not times or time.perf_counter() < end:
            start = time.perf_counter()
            call()
            times.append(1e3 * (time.perf_counter() - start))
        medians.append(statistics.median(times))
    return medians


def _isolated(
    folder: Path,
    write: Callable[[nn.Module, Tensor, Path], None],
    model: nn.Module,
    example: Tensor,
    runtime: str,
    rounds: int,
    seconds: float,
    threads: int,
) -> list[float] | None:
    """The rounds' medians from a fresh process; None if the network cannot be sent there."""
    from safetensors.torch import save_file

    path = folder / f"model.{runtime}"
    try:
        write(model, example, path)
    except (PareError, RuntimeError, ValueError, TypeError, NotImplementedError):
        return None
    save_file({"example": example.detach().cpu().contiguous()}, folder / "example.safetensors")
    job = {"runtime": runtime, "rounds": rounds, "seconds": seconds, "threads": threads}
    command = [sys.executable, "-m", "paretorch.deploy.timing", str(folder), json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    if done.returncode:
        return None
    medians: list[float] = json.loads(done.stdout.splitlines()[-1])
    return medians


def _here(model: nn.Module, example: Tensor, rounds: int, seconds: float) -> list[float]:
    training = {module: module.training for module in model.modules()}
    try:
        model.eval()
        with torch.inference_mode():
            return timed_rounds(lambda: model(example), rounds, seconds)
    finally:
        for module, flag in training.items():
            module.training = flag


def _plain(model: nn.Module) -> nn.Module:
    import copy

    return copy.deepcopy(model).cpu().eval()


def _write_torch(model: nn.Module, example: Tensor, path: Path) -> None:
    program: Any = torch.export.export(_plain(model), (example.detach().cpu(),))
    with path.open("wb") as file:
        torch.export.save(program, file)


def _write_onnx(model: nn.Module, example: Tensor, path: Path) -> None:
    from paretorch.deploy.onnx import export_onnx

    export_onnx(model, example, path)
