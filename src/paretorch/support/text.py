"""Numbers, sizes of files, names, tables and loops of layers as plain text: "1.3 MB", "48 KiB", "1/10" of the dense network, 1.23 MB.

A folded network runs its layers in ascending runs, some of them repeated; `loops_in_words` says in which.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import nn

from paretorch.errors import ConfigError

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "KIB": 1024,
    "MIB": 1024**2,
    "GIB": 1024**3,
}
_SIZE = re.compile(r"\s*([0-9]+\.?[0-9]*|\.[0-9]+)\s*([A-Za-z]*)\s*")
_SHARE = re.compile(r"\s*([0-9]+)\s*/\s*([0-9]+)\s*")
_LONGEST = 40
_HINT = 'write it like 48000, "48 KB" (48000 bytes), "48 KiB" (49152), "1.5 MB" or "1/10" (of the dense network)'


def parse_bytes(size: Any, dense: Callable[[], int] | None = None) -> int:
    """Return the number of bytes that a whole number or a text stands for.

    kB, MB and GB are powers of 1000; KiB, MiB and GiB are powers of 1024. Case does not matter.

    Args:
        dense: Returns the bytes of the dense network, for shares such as "1/10"; None if there is no such network.

    Example:
        >>> parse_bytes("1.3 MB"), parse_bytes("48 KiB"), parse_bytes("1/10", lambda: 28_000_000)
        (1300000, 49152, 2800000)
    """
    if isinstance(size, bool) or not isinstance(size, str | int):
        raise ConfigError(f"{size!r} is not a size; {_HINT}")
    text = str(size)
    if len(text) > _LONGEST:
        raise ConfigError(f"{text[:_LONGEST]!r}… is no size; {_HINT}")
    if match := _SHARE.fullmatch(text):
        if dense is None:
            raise ConfigError(f"{text!r} is a share of a dense network, and none is known here; write bytes, or 1.5 MB")
        if not int(match[2]) or int(match[1]) > int(match[2]):
            raise ConfigError(f"{text!r} is not a share of the dense network; write it like 1/10")
        return dense() * int(match[1]) // int(match[2])
    match = _SIZE.fullmatch(text)
    if match is None or match[2].upper() not in _UNITS:
        raise ConfigError(f"{text!r} is not a size; {_HINT}")
    # Rounded first, because of binary fractions: 1.001 MB is 1001000 bytes, not 1000999.
    return int(round(float(match[1]) * _UNITS[match[2].upper()], 3))


_TIMES = {"us": 1e-3, "ms": 1.0, "s": 1e3}
_TIME = re.compile(r"\s*([0-9]+\.?[0-9]*|\.[0-9]+)\s*(us|ms|s)\s*")
_TIME_HINT = 'write it like "5 ms", "800 us" or "1/2" (of the dense network)'


def parse_milliseconds(time: Any, dense: Callable[[], float]) -> float:
    """Return the milliseconds that a text stands for; a number alone could be seconds or milliseconds, and raises.

    Args:
        dense: Returns the milliseconds of the dense network, for shares such as "1/2".

    Example:
        >>> parse_milliseconds("800 us", lambda: 6.0), parse_milliseconds("1/2", lambda: 6.0)
        (0.8, 3.0)
    """
    if not isinstance(time, str) or len(time) > _LONGEST:
        raise ConfigError(f"latency={time!r:.60}: {_TIME_HINT}")
    if match := _SHARE.fullmatch(time):
        if not 0 < int(match[1]) <= int(match[2]):
            raise ConfigError(f"latency={time!r} is no share of the dense network: {_TIME_HINT}")
        return dense() * int(match[1]) / int(match[2])
    match = _TIME.fullmatch(time.lower().replace("\u03bc", "u").replace("\u00b5", "u"))  # both letters mu
    if match is None or not float(match[1]):
        raise ConfigError(f"latency={time!r}: {_TIME_HINT}")
    return float(match[1]) * _TIMES[match[2]]


def dense_bytes(model: nn.Module) -> int:
    """Return the bytes of a model's parameters and buffers as plain tensors; tied tensors count once."""
    found = {(tensor.data_ptr(), tensor.shape): tensor for tensor in model.state_dict().values()}
    return sum(tensor.numel() * tensor.element_size() for tensor in found.values())


def human(count: float, unit: str = "B") -> str:
    """Return a count with a prefix: 1234567 is '1.23 MB'; 1 kB is 1000 bytes."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(count) >= factor:
            return (
                f"{count / factor:.3g} {prefix}{unit}"
                if count / factor < 999.5
                else f"{count / factor:.0f} {prefix}{unit}"
            )
    return f"{count:.0f} {unit}".strip()


def printable(name: str) -> str:
    """Return a name from a file as a terminal may show it: no control characters, no lone surrogates."""
    return name if name.isprintable() else ascii(name)


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines with aligned columns, the first to the left, the others to the right; the first row is the heading."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return [lines[0], "─" * max(len(line) for line in lines), *lines[1:]]


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
