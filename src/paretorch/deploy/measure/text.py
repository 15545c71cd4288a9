"""Numbers, names and tables as plain text, for terminals."""

from __future__ import annotations

from collections.abc import Sequence


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
