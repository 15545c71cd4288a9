"""Times calls against each other: in one run, in turns, several rounds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

import torch

from paretorch.deploy.measure.latency import timed_rounds
from paretorch.errors import ConfigError

Call = Callable[[], object]
Timer = Callable[[Mapping[str, Call]], Mapping[str, Sequence[float]]]
"""Named calls to the milliseconds that each took in every round."""

_GAIN = 0.97  # what is not at least this much shorter is not called faster
_AGREE = 0.75  # the share of the rounds that must say so


def timer(device: torch.device, rounds: int, seconds: float, graphs: bool) -> Timer:
    """By the clock on a CPU; by events on a GPU, where calls may be replayed from CUDA graphs."""
    if device.type != "cuda":
        return lambda calls: timed_rounds(calls, rounds, seconds)
    return lambda calls: _by_events({n: _graph(c) if graphs else c for n, c in calls.items()}, rounds, seconds)


def speedup(before: Sequence[float], after: Sequence[float]) -> float:
    """The median over the rounds of how many times faster it became."""
    return statistics.median(a / b for a, b in zip(before, after, strict=True))


def is_faster(before: Sequence[float], after: Sequence[float]) -> bool:
    """Whether most rounds, and not by a hair, say so."""
    wins = sum(b <= _GAIN * a for a, b in zip(before, after, strict=True))
    return wins >= _AGREE * len(before) and speedup(before, after) >= 1 / _GAIN


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
    """Milliseconds of a call on a GPU, the mean of so many."""
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
        raise ConfigError(f"this cannot be replayed from a CUDA graph, leave graphs=False: {error}") from error

    def replay() -> object:
        graph.replay()
        return kept

    return replay
