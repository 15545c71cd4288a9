"""Latency, measured in a process of its own: all networks in turn, in several rounds, as medians.

That process gets a network as a file (torch.export, ONNX). A network that torch.export refuses is timed in this process
instead, and the result says so. Each round runs all networks before the next one starts, so that a machine that slows down
slows all of them. Only numbers from one call are comparable. A `Timer` compares calls within this process in the same way.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn

from paretorch.deploy.onnx import export_onnx
from paretorch.deploy.plain import copied
from paretorch.errors import ConfigError, PareWarning
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
            with warnings.catch_warnings(action="ignore", category=PareWarning):  # of a file that nobody keeps
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


Timer = Callable[[Mapping[str, Call]], Mapping[str, Sequence[float]]]
"""Maps named calls to the milliseconds that each took in every round."""

_MAX_RATIO = 0.97  # what takes at most this share of the time counts as faster
_MIN_AGREEMENT = 0.75  # the share of rounds in which it must be faster


def timer(device: torch.device, rounds: int, seconds: float, graphs: bool) -> Timer:
    """Return a timer: by the clock on a CPU; by events on a GPU, replaying calls from CUDA graphs if `graphs`."""
    if device.type != "cuda":
        return lambda calls: timed_rounds(calls, rounds, seconds)
    return lambda calls: _by_events({n: _graph(c) if graphs else c for n, c in calls.items()}, rounds, seconds)


def speedup(before: Sequence[float], after: Sequence[float]) -> float:
    """Return how many times faster it became: the median over the rounds."""
    return statistics.median(a / b for a, b in zip(before, after, strict=True))


def is_faster(before: Sequence[float], after: Sequence[float]) -> bool:
    """Return whether it is faster in most rounds, by a margin."""
    wins = sum(b <= _MAX_RATIO * a for a, b in zip(before, after, strict=True))
    return wins >= _MIN_AGREEMENT * len(before) and speedup(before, after) >= 1 / _MAX_RATIO


def speedup_in_words(before: Sequence[float], after: Sequence[float]) -> str:
    """Return "1.8 × faster"; without a ratio if the ranges of the rounds overlap, because it would be noise."""
    if max(after) < min(before):
        return f"{speedup(before, after):.1f} × faster"
    wins = sum(b < a for a, b in zip(before, after, strict=True))
    return f"faster in {wins} of {len(before)} rounds"


def _by_events(calls: Mapping[str, Call], rounds: int, seconds: float) -> dict[str, list[float]]:
    counts = {}
    for name, call in calls.items():
        for _ in range(3):
            call()
        counts[name] = max(1, math.ceil(1e3 * seconds / max(elapsed(call, 3), 1e-3)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(elapsed(call, counts[name]))
    return times


def elapsed(call: Call, count: int) -> float:
    """Return the milliseconds of a call on a GPU, the mean of `count` calls."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(count):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / count


def _graph(call: Call) -> Call:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            kept = call()
    except RuntimeError as error:
        raise ConfigError(f"This cannot be replayed from a CUDA graph, use graphs=False: {error}") from error

    def replay() -> object:
        graph.replay()
        return kept

    return replay
