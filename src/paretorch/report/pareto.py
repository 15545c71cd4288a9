"""Accuracy against bytes on disk: which files are on the Pareto front, as a picture, as text and as plain values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from paretorch.report.markup import WIDTH, figure, in_report_colours, line, number, path, text, ticks
from paretorch.support.text import human, printable, table

_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, WIDTH - 14.0, 28.0, 310.0
_SPAN = 0.15  # of accuracy, below the best point: worse points are drawn at the lower edge
_ROW = 19.0


@dataclass(frozen=True)
class Point:
    """A file: its name, the kind of file, its bytes, and the accuracy (a fraction) of the network in it."""

    name: str
    family: str
    bytes: int
    accuracy: float


def on_front(points: Sequence[Point]) -> list[bool]:
    """Return, for each file, whether no other is at least as small and as accurate, and better in one of the two."""
    return [not any(_beats(other, point) for other in points) for point in points]


def _beats(one: Point, other: Point) -> bool:
    within = one.bytes <= other.bytes and one.accuracy >= other.accuracy
    return within and (one.bytes, one.accuracy) != (other.bytes, other.accuracy)


def as_rows(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Return plain values, smallest file first."""
    rows = [{**asdict(point), "front": front} for point, front in zip(points, on_front(points), strict=True)]
    return sorted(rows, key=lambda row: (row["bytes"], -row["accuracy"], row["name"]))


def as_text(points: Sequence[Point]) -> str:
    """Return a table, smallest file first; a star marks the front."""
    rows = [["file", "kind", "bytes", "accuracy", "front"]]
    for row in as_rows(points):
        name, front = printable(row["name"]), "*" if row["front"] else ""
        rows.append([name, row["family"], f"{row['bytes']:,}", f"{row['accuracy']:.2%}", front])
    return "\n".join(table(rows))


def draw(title: str, points: Sequence[Point]) -> str:
    """Return the picture as an SVG file of its own."""
    return in_report_colours(chart(title, points))


def chart(title: str, points: Sequence[Point]) -> str:
    """Return the picture for a page, with bytes on a logarithmic axis."""
    families = list(dict.fromkeys(point.family for point in points))
    best = max(point.accuracy for point in points)
    low, high = _accuracies(points, best)
    start, end = _decades(points)

    def at(size: float, accuracy: float) -> tuple[float, float]:
        x = _LEFT + (math.log10(size) - start) / (end - start) * (_RIGHT - _LEFT)
        return x, _BOTTOM - (max(accuracy, low) - low) / (high - low) * (_BOTTOM - _TOP)

    body = _axes(start, end, low, high, at)
    front = sorted(
        (point for point, best in zip(points, on_front(points), strict=True) if best), key=lambda point: point.bytes
    )
    body.append(path([at(point.bytes, point.accuracy) for point in front], "line s0", "Pareto front"))
    for point in points:
        kind = families.index(point.family)
        tip = f"{point.name}, {point.family}: {point.bytes:,} bytes, {point.accuracy:.2%}"
        below = " (below the picture)" if point.accuracy < low else ""
        body.append(_mark(kind, *at(point.bytes, point.accuracy), tip + below, ringed=point in front))
    foot = _BOTTOM + 52
    for i, family in enumerate(families):
        x, y = (_LEFT if i % 2 == 0 else WIDTH / 2 + 16), foot + _ROW * (i // 2)
        body += [_mark(i, x, y - 4, family), text(x + 12, y, family)]
    last = foot + _ROW * ((len(families) + 1) // 2)
    body.append(text(_LEFT, last, "line and rings: the Pareto front"))
    if any(point.accuracy < low for point in points):
        last += _ROW
        body.append(text(_LEFT, last, f"marks on the lower edge: below {100 * low:.4g}%"))
    listed = "; ".join(f"{point.name}, {point.bytes:,} bytes, {point.accuracy:.2%}" for point in front)
    said = f"{len(points)} files, accuracy against bytes on disk. On the Pareto front: {listed}."
    return figure("pareto", title, said, last + 12, body)


def _accuracies(points: Sequence[Point], best: float) -> tuple[float, float]:
    """Return the range of accuracies that the picture shows, within 0 and 1."""
    shown = [point.accuracy for point in points if point.accuracy >= best - _SPAN]
    found = ticks(min(shown), best, 5)
    return max(found[0], 0.0), min(found[-1], 1.0)


def _decades(points: Sequence[Point]) -> tuple[float, float]:
    """Return the range of log10(bytes), with a margin on either side."""
    sizes = [math.log10(point.bytes) for point in points]
    margin = max(0.08, 0.05 * (max(sizes) - min(sizes)))
    return min(sizes) - margin, max(sizes) + margin


def _axes(
    start: float, end: float, low: float, high: float, at: Callable[[float, float], tuple[float, float]]
) -> list[str]:
    body = []
    for tick in ticks(low, high, 5):
        y = at(10**start, tick)[1]
        body += [line(_LEFT, y, _RIGHT, y, "grid"), text(_LEFT - 6, y + 4, f"{100 * tick:.4g}%", "end")]
    for size in _sizes(start, end):
        x = at(size, low)[0]
        body += [line(x, _TOP, x, _BOTTOM, "grid"), text(x, _BOTTOM + 16, human(size).replace(".0 ", " "), "middle")]
    body += [
        line(_LEFT, _BOTTOM, _RIGHT, _BOTTOM, "axis"),
        text((_LEFT + _RIGHT) / 2, _BOTTOM + 33, "bytes on disk (logarithmic)", "middle"),
        text(_LEFT - 42, _TOP - 14, "test accuracy"),
    ]
    return body


def _sizes(start: float, end: float) -> list[float]:
    """Return round sizes within the range: 1, 2, 5 times a power of ten; only the powers if these are many, more if few."""
    powers = range(math.floor(start), math.ceil(end) + 1)

    def within(steps: Sequence[float]) -> list[float]:
        sizes = [step * 10.0**power for power in powers for step in steps]
        return [size for size in sizes if start <= math.log10(size) <= end]

    found = within((1, 2, 5) if end - start < 2.2 else (1,))
    return found if len(found) > 1 else within((1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8))


_MARK_SIZE = 5.0
# Outlines around (0, 0), in units of the size.
_MARK_SHAPES = (
    "M-1 0A1 1 0 1 0 1 0A1 1 0 1 0-1 0Z",  # circle
    "M-.9-.9H.9V.9H-.9Z",  # square
    "M0-1.25L1.25 0L0 1.25L-1.25 0Z",  # diamond
    "M0-1.15L1.1.85H-1.1Z",  # triangle
    "M0 1.15L1.1-.85H-1.1Z",  # triangle on its tip
    "M-1.1-.4H-.4V-1.1H.4V-.4H1.1V.4H.4V1.1H-.4V.4H-1.1Z",  # cross
    "M-1.2 0L-.4-.4L0-1.2L.4-.4L1.2 0L.4.4L0 1.2L-.4.4Z",  # star
    "M-1-1.1H1L.2 0L1 1.1H-1L-.2 0Z",  # hourglass
    "M-1.3-.5H1.3V.5H-1.3Z",  # bar
)


def _mark(kind: int, x: float, y: float, tip: str, *, ringed: bool = False) -> str:
    """Return the mark of family number `kind`, with a tooltip. Families differ in shape and colour, so that neither is needed alone."""
    shape, colour = _MARK_SHAPES[kind % len(_MARK_SHAPES)], kind % 4
    ring = f'<circle cx="{number(x)}" cy="{number(y)}" r="9" class="line s0"/>' if ringed else ""
    place = f"translate({number(x)} {number(y)}) scale({number(_MARK_SIZE)})"
    return f'{ring}<path d="{shape}" transform="{place}" class="c{colour}"><title>{escape(tip)}</title></path>'
