"""Describes in words the order in which a folded network runs its layers: ascending runs, some of them repeated."""

from collections.abc import Sequence
from typing import NamedTuple


class Stretch(NamedTuple):
    """Layers first, first + 1 … last, run `times` times."""

    first: int
    last: int
    times: int = 1


def stretches(order: Sequence[int]) -> list[Stretch]:
    """Split an order into parts with the longest possible loops: 1 2 3 4 3 4 1 2 is 1-2, 3-4 twice, 1-2."""
    found: list[Stretch] = []
    i = 0
    while i < len(order):
        part = _loop_at(order, i)
        last = found[-1] if found else None
        if part.times == 1 and last is not None and last.times == 1 and part.first == last.last + 1:
            found[-1] = Stretch(last.first, part.last)
        else:
            found.append(part)
        i += part.times * (part.last - part.first + 1)
    return found


def _loop_at(order: Sequence[int], i: int) -> Stretch:
    """Return the repetition from place i on that covers most of the order, with the fewest layers; else the single layer."""
    best, covered = Stretch(order[i], order[i]), 1
    for length in range(1, (len(order) - i) // 2 + 1):
        block = list(order[i : i + length])
        if block[-1] != block[0] + length - 1:
            break  # no longer ascending
        times = 1
        while list(order[i + times * length : i + (times + 1) * length]) == block:
            times += 1
        if times > 1 and times * length > covered:
            best, covered = Stretch(block[0], block[-1], times), times * length
    return best


def loops_in_words(order: Sequence[int]) -> str:
    """Describe a network that runs its layers 1, 2 … in this order: "layers 3-4 run twice, then back to 1"."""
    parts = _each(stretches(order))
    if len(parts) == 1 and parts[0][0].times == 1:
        return f"no loop: {_layers(*parts[0][0][:2])} run{'s' if len(order) == 1 else ''} once"
    words, before, top = [], 0, max(order)
    for (first, last, times), each in parts:
        loop = ""
        if times > 1:
            loop = f"{_layers(first, last)} run{'s' if first == last else ''} {_times(times)}{' each' if each else ''}"
        jump = ""
        if first != before + 1:
            jump = "back to " if first <= before else "on to "
            jump += str(first) if last in (top, first) or loop else f"{first}-{last}"
        if loop or jump:
            words.append(f"{jump}, where {loop}" if loop and jump else loop or jump)
        before = last
    return ", then ".join(words)


def _each(parts: Sequence[Stretch]) -> list[tuple[Stretch, bool]]:
    """Join single layers that follow each other and run equally often: 1 twice and 2 twice is "1-2, twice each"."""
    found: list[tuple[Stretch, bool]] = []
    for part in parts:
        single = part.first == part.last and part.times > 1
        if single and found:
            last, each = found[-1]
            if (each or last.first == last.last) and last.times == part.times and part.first == last.last + 1:
                found[-1] = (Stretch(last.first, part.last, part.times), True)
                continue
        found.append((part, False))
    return found


def _layers(first: int, last: int) -> str:
    return f"layer {first}" if first == last else f"layers {first}-{last}"


def _times(times: int) -> str:
    return "twice" if times == 2 else f"{times} times"
