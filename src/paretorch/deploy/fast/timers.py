"""Timers that compare calls in one run, in turns, over several rounds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

import torch

from paretorch.deploy.measure.latency import timed_rounds
from paretorch.errors import ConfigError

Call = Callable[[], object]
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
