"""Loops in words: the order in which a folded network runs its layers, as runs upwards and ways back."""

import itertools
from collections.abc import Sequence


def segments(order: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of consecutive layers, each as (first, last): 1 2 3 4 3 4 1 2 is (1, 4), (3, 4), (1, 2)."""
    found: list[tuple[int, int]] = []
    for layer in order:
        if found and layer == found[-1][1] + 1:
            found[-1] = (found[-1][0], layer)
        else:
            found.append((layer, layer))
    return found


def backward_edges(order: Sequence[int]) -> list[tuple[int, int]]:
    """(from, to) of every step that does not go on to a later layer, in order of execution."""
    return [(one, other) for one, other in itertools.pairwise(order) if other <= one]


def loops_in_words(order: Sequence[int]) -> str:
    """What a network does that runs its layers 1, 2 … in this order: "layers 3-4 run twice, then back to 1"."""
    runs, top = segments(order), max(order)
    if len(runs) == 1:
        return f"no loop: {_layers(*runs[0])} run{'s' if len(order) == 1 else ''} once"
    parts, i = [], 0
    while i < len(runs):
        first, last = runs[i]
        start, times = _loop(runs, i)
        loop = f"{_layers(start, last)} run{'s' if start == last else ''} {_times(times)}" if times > 1 else ""
        way = ""
        if i:
            way = "back to " if first <= runs[i - 1][1] else "on to "
            way += str(first) if last in (top, first) or loop else f"{first}-{last}"
        if loop or way:
            parts.append(f"{way}, where {loop}" if loop and way else loop or way)
        i += times
    return ", then ".join(parts)


def _loop(runs: list[tuple[int, int]], i: int) -> tuple[int, int]:
    """Where the loop at the end of run i begins, and how often it runs; once where there is none."""
    first, last = runs[i]
    start = runs[i + 1][0] if i + 1 < len(runs) else first
    times = 1
    while i + times < len(runs) and start >= first and runs[i + times] == (start, last):
        times += 1
    return start, times


def _layers(first: int, last: int) -> str:
    return f"layer {first}" if first == last else f"layers {first}-{last}"


def _times(times: int) -> str:
    return "twice" if times == 2 else f"{times} times"
