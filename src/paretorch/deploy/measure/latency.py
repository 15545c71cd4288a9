"""Latency, measured in a process of its own: all networks in turn, in several rounds, as medians.

That process gets a network as a file (torch.export, ONNX). A network that torch.export refuses is timed in this process
instead, and the result says so. Each round runs all networks before the next one starts, so that a machine that slows down
slows all of them. Only numbers from one call are comparable.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn

from paretorch.deploy.onnx import export_onnx
from paretorch.deploy.plain import copied
from paretorch.errors import ConfigError
from paretorch.support.inputs import Example, ModelCall, TensorFunction, read_example
from paretorch.support.processes import module_command, suppress_output

_TIMEOUT = 600  # seconds for the measuring process
Call = Callable[[], object]


@dataclass(frozen=True)
class Latency:
    """Milliseconds per batch: the median of the rounds' medians, and the lowest and highest of these."""

    name: str
    runtime: str
    median_ms: float
    low_ms: float
    high_ms: float
    rounds: int
    batch: int
    threads: int
    isolated: bool

    def overlaps(self, other: Latency) -> bool:
        """Return whether the ranges from lowest to highest overlap: then neither is measurably faster."""
        return self.low_ms < other.high_ms and other.low_ms < self.high_ms


def measure_latency(
    models: nn.Module | Mapping[str, nn.Module],
    example: Example,
    *,
    rounds: int = 5,
    seconds: float = 0.3,
    threads: int | None = None,
) -> list[Latency]:
    """Time modules on the CPU under torch, and under onnxruntime if the extra `export` is installed.

    Args:
        models: One, or several by name, to be compared.
        example: A batch of inputs: a tensor, a tuple of the models' arguments, or a dict of keyword arguments.
        seconds: Of each round of each module.
        threads: Default: as many as torch uses here.
    """
    if rounds < 1 or seconds <= 0:
        raise ConfigError(f"rounds must be at least 1 and seconds above 0, not {rounds} and {seconds}")
    call = read_example(example).map(lambda tensor: tensor.detach()).to("cpu")
    named = {"model": models} if isinstance(models, nn.Module) else dict(models)
    threads = threads or torch.get_num_threads()
    with_onnx = find_spec("onnxruntime") is not None and find_spec("onnxscript") is not None
    runtimes = ("torch", "onnxruntime") if with_onnx else ("torch",)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        files: dict[str, tuple[str, str]] = {}
        for i, (name, model) in enumerate(named.items()):
            for runtime in runtimes:
                if _write(model, call, folder / f"{i}.{runtime}", runtime):
                    files[f"{i}.{runtime}"] = (name, runtime)
        medians = _in_own_process(folder, list(files), call, rounds, seconds, threads)
    found = {files[file]: (values, True) for file, values in medians.items()}
    for name, model in named.items():
        if (name, "torch") not in found:
            found[name, "torch"] = (_here(model, call, rounds, seconds, threads), False)
    return [
        Latency(*key, statistics.median(values), min(values), max(values), rounds, call.batch, threads, isolated)
        for key, (values, isolated) in sorted(found.items(), key=lambda item: list(named).index(item[0][0]))
    ]


def timed_rounds(calls: Mapping[str, Call], rounds: int, seconds: float) -> dict[str, list[float]]:
    """Return the median milliseconds of each round of each call, after a warm-up."""
    for call in calls.values():
        for _ in range(3):
            call()
    medians: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times: list[float] = []
            end = time.perf_counter() + seconds
            while not times or time.perf_counter() < end:
                start = time.perf_counter()
                call()
                times.append(1e3 * (time.perf_counter() - start))
            medians[name].append(statistics.median(times))
    return medians


def _write(model: nn.Module, call: ModelCall, path: Path, runtime: str) -> bool:
    """Export the module; return False if it cannot be exported."""
    try:
        if runtime == "onnxruntime":
            export_onnx(model, call, path)
        else:
            network = TensorFunction(copied(model, "torch").cpu(), call)
            with suppress_output(), path.open("wb") as file:
                torch.export.save(torch.export.export(network, tuple(call.tensors)), file)
    except Exception:  # exporters raise errors of their own types
        return False
    return True


def _in_own_process(
    folder: Path, files: list[str], call: ModelCall, rounds: int, seconds: float, threads: int
) -> dict[str, list[float]]:
    """Return the rounds' medians by file; an empty dict if the process fails."""
    if not files:
        return {}
    from safetensors.torch import save_file

    # Copies: several arguments may be views of one tensor, which the file cannot hold.
    arguments = {str(i): tensor.contiguous().clone() for i, tensor in enumerate(call.tensors)}
    save_file(arguments, folder / "example.safetensors")
    job = json.dumps({"files": files, "rounds": rounds, "seconds": seconds, "threads": threads})
    command = module_command("paretorch.deploy.measure.latency_process", str(folder), job)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=True)
        medians: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, OSError, ValueError, IndexError):
        return {}
    return medians


def _here(model: nn.Module, call: ModelCall, rounds: int, seconds: float, threads: int) -> list[float]:
    """Time in this process as in one of its own: on the CPU, with `threads` threads."""
    plain = copied(model, "a measurement of latency").cpu()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        with torch.inference_mode():
            return timed_rounds({"here": lambda: call(plain)}, rounds, seconds)["here"]
    finally:
        torch.set_num_threads(before)
