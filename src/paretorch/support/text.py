"""Numbers, sizes of files, names and tables as plain text: "1.3 MB", "48 KiB", "1/10" of the dense network, 1.23 MB."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

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
