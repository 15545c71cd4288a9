"""Charts as SVG strings: lines over epochs, curves with their spread, bars per layer, a histogram, one bar in parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paretorch.report.markup import SERIES, WIDTH, figure, line, path, rect, shorten, text, ticks

Format = Callable[[float], str]
_ROW = 20.0
_LINES = 6  # kinds of lines: a colour and a dash each
_LEGEND_LEFT, _LEGEND_ROW = 52.0, 14.0


def plain(value: float) -> str:
    return f"{value:.4g}"


def line_chart(
    ident: str,
    title: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x_label: str,
    marks: Sequence[tuple[float, str]] = (),
    form: Format = plain,
) -> str:
    """Draw one line per series, with its own colour and dash; `marks` are vertical lines with a label."""
    places = _places(list(series))
    lower = places[-1][1] if places else 0.0  # a legend of several rows moves the rest down
    height, left, right, top, bottom = 230.0 + lower, 52.0, WIDTH - 10.0, 24.0 + lower, 190.0 + lower
    points = [point for values in series.values() for point in values]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    y_ticks = ticks(min(ys), max(ys))
    low, high = min(min(ys), y_ticks[0]), max(max(ys), y_ticks[-1])
    start, span = min(xs), (max(xs) - min(xs)) or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        return left + (x - start) / span * (right - left), bottom - (y - low) / (high - low) * (bottom - top)

    body = []
    for tick in y_ticks:
        y = at(start, tick)[1]
        body += [line(left, y, right, y, "grid"), text(left - 6, y + 4, form(tick), "end")]
    for tick in [tick for tick in ticks(min(xs), max(xs), 5) if start <= tick <= start + span]:
        body.append(text(at(tick, low)[0], bottom + 16, plain(tick), "middle"))
    body += [line(left, bottom, right, bottom, "axis"), text((left + right) / 2, bottom + 33, x_label, "middle")]
    for i, (where, word) in enumerate(marks):
        # Rounding and fine-tuning begin an epoch apart: labels of one height would overlap.
        x, y = at(where, low)[0], top + 10 + 13 * (i % 4)
        body += [
            line(x, top, x, bottom, "mark"),
            text(x + (4 if x < WIDTH / 2 else -4), y, word, "start" if x < WIDTH / 2 else "end"),
        ]
    for i, ((name, values), (where, row)) in enumerate(zip(series.items(), places, strict=True)):
        kind = f"line s{i % _LINES}"
        body.append(path([at(x, y) for x, y in values], kind, name))
        body += [line(where, 10 + row, where + 18, 10 + row, kind), text(where + 23, 14 + row, name)]
    ends = ", ".join(f"{name} from {form(values[0][1])} to {form(values[-1][1])}" for name, values in series.items())
    return figure(ident, title, f"Against {x_label}: {ends}.", height, body)


def _places(names: Sequence[str]) -> list[tuple[float, float]]:
    """Return where each name of a legend begins: from the left, and how far below the first row."""
    found, x, row = [], _LEGEND_LEFT, 0.0
    for name in names:
        wide = 40 + 6.6 * len(name)
        if x > _LEGEND_LEFT and x + wide > WIDTH + 12:
            x, row = _LEGEND_LEFT, row + _LEGEND_ROW
        found.append((x, row))
        x += wide
    return found


def bar_rows(
    ident: str,
    title: str,
    rows: Sequence[tuple[str, float]],
    *,
    full: float | None = None,
    form: Format = plain,
    kind: str = "c0",
) -> str:
    """Draw a horizontal bar per name; `full` is the value of a bar across the whole width (default: the largest)."""
    left, right = 150.0, WIDTH - 58.0
    full = full or max((value for _, value in rows), default=1.0) or 1.0
    body = []
    for i, (name, value) in enumerate(rows):
        y = i * _ROW
        body += [
            text(left - 8, y + 14, shorten(name, 21), "end"),
            rect(left, y + 4, right - left, _ROW - 8, "track"),
            rect(left, y + 4, (right - left) * min(value / full, 1.0), _ROW - 8, kind, f"{name}: {form(value)}"),
            text(right + 6, y + 14, form(value)),
        ]
    said = "; ".join(f"{name} {form(value)}" for name, value in rows)
    return figure(ident, title, said, max(len(rows), 1) * _ROW + 2, body)


def histogram(ident: str, title: str, counts: Mapping[str, int], *, x_label: str) -> str:
    """Draw a column per label, with its share on top."""
    height, top, bottom = 200.0, 24.0, 158.0
    total, most = sum(counts.values()) or 1, max(counts.values(), default=1) or 1
    width = (WIDTH - 20.0) / max(len(counts), 1)
    body = [line(10, bottom, WIDTH - 10, bottom, "axis"), text(WIDTH / 2, bottom + 34, x_label, "middle")]
    for i, (label, count) in enumerate(counts.items()):
        x, tall = 10 + i * width, (bottom - top) * count / most
        share = f"{count / total:.1%}" if width > 44 else f"{count / total:.0%}"
        body += [
            rect(
                x + width * 0.12, bottom - tall, width * 0.76, tall, "c0", f"{label}: {count:,} ({count / total:.2%})"
            ),
            text(x + width / 2, bottom - tall - 6, share, "middle"),
            text(x + width / 2, bottom + 16, label, "middle"),
        ]
    said = "; ".join(f"{label}: {count / total:.1%}" for label, count in counts.items())
    return figure(ident, title, f"Share by {x_label}: {said}.", height, body)


def stacked_bar(ident: str, title: str, parts: Sequence[tuple[str, float]], *, form: Format = plain) -> str:
    """Draw one bar in parts, with a legend of each part's amount and share."""
    total = sum(value for _, value in parts) or 1.0
    body, x = [], 0.0
    for i, (name, value) in enumerate(parts):
        wide = WIDTH * value / total
        body.append(rect(x, 2, max(wide - 1.0, 0.0), 30, f"c{i % 4}", f"{name}: {form(value)}", 3))
        x += wide
    for i, (name, value) in enumerate(parts):
        y = 44.0 + i * _ROW
        body += [
            rect(0, y, 12, 12, f"c{i % 4}"),
            text(20, y + 11, name),
            text(WIDTH - 70, y + 11, form(value), "end"),
            text(WIDTH, y + 11, f"{value / total:.1%}", "end"),
        ]
    said = "; ".join(f"{name} {form(value)}, {value / total:.1%}" for name, value in parts)
    return figure(ident, title, said, 46 + len(parts) * _ROW, body)


_CURVES_LEFT, _CURVES_RIGHT, _CURVES_TOP, _CURVES_BOTTOM, _CURVES_HEIGHT = 48.0, WIDTH - 20.0, 52.0, 228.0, 270.0


class Curve(NamedTuple):
    """A line, and the band around it (equal to the line if there is no spread)."""

    x: ArrayLike
    middle: ArrayLike
    low: ArrayLike
    high: ArrayLike


def curves(
    title: str,
    series: Mapping[str, Curve],
    *,
    x_label: str,
    y_label: str = "",
    log_x: bool = False,
    floor: float | None = None,
) -> str:
    """Draw one line per series with its band; x is linear or logarithmic.

    Args:
        floor: y is logarithmic and begins here; values below are drawn at the floor. Default: y is linear and begins at 0.
    """
    rows = {name: [np.asarray(values, np.float64) for values in curve] for name, curve in series.items()}
    for values in rows.values():
        values[0] = np.log10(values[0]) if log_x else values[0]
    xs = np.concatenate([values[0] for values in rows.values()])
    span = float(np.ptp(xs)) or 1.0
    start = float(xs.min()) if np.ptp(xs) else float(xs[0]) - span / 2
    most = float(max(values[3].max() for values in rows.values()))
    y_ticks = ticks(0.0, most if most > 0 else 1.0) if floor is None else _decades(floor, most)
    legend, lower = _legend(list(rows))
    top, bottom = _CURVES_TOP + lower, _CURVES_BOTTOM + lower

    def at(x: NDArray[np.float64], y: NDArray[np.float64]) -> list[tuple[float, float]]:
        across = _CURVES_LEFT + (x - start) / span * (_CURVES_RIGHT - _CURVES_LEFT)
        share = y / y_ticks[-1] if floor is None else np.log(np.maximum(y / floor, 1)) / math.log(y_ticks[-1] / floor)
        up = bottom - share * (bottom - top)
        return list(zip(across.tolist(), up.tolist(), strict=True))

    body = [text(_CURVES_LEFT, top - 9, y_label)]
    for tick in y_ticks:
        y = at(np.zeros(1), np.array([tick]))[0][1]
        body += [line(_CURVES_LEFT, y, _CURVES_RIGHT, y, "grid"), text(_CURVES_LEFT - 6, y + 4, f"{tick:.4g}", "end")]
    marks = range(math.ceil(start), math.floor(start + span) + 1) if log_x else ticks(start, start + span, 6)
    within = [float(mark) for mark in marks if start <= mark <= start + span]
    for tick in within if np.ptp(xs) else [float(xs[0])]:
        said = f"{10**tick:g}" if log_x else f"{tick:g}"
        body.append(text(at(np.array([tick]), np.zeros(1))[0][0], bottom + 15, said, "middle"))
    body += [line(_CURVES_LEFT, bottom, _CURVES_RIGHT, bottom, "axis")]
    body += [text((_CURVES_LEFT + _CURVES_RIGHT) / 2, bottom + 31, x_label, "middle")]
    for i, (name, (x, middle, low, high)) in enumerate(rows.items()):
        kind = i % len(SERIES)
        body.append(path(at(x, high) + at(x, low)[::-1], f"band b{kind}", name))
        places = at(x, middle)
        # A line of one point would be invisible.
        body.append(path(places, f"line s{kind}", name) if len(places) > 1 else _dot(*places[0], kind, name))
    body += legend
    said = "; ".join(f"{name} ends at {values[1][-1]:.4g}" for name, values in rows.items())
    return figure("curves", title, f"{title}. {said}.", _CURVES_HEIGHT + lower, body)


def _decades(floor: float, top: float) -> list[float]:
    """Return the floor and its multiples by ten, up to the first that is at least the top."""
    return [floor * 10**i for i in range(max(1, math.ceil(math.log10(max(top, floor) / floor))) + 1)]


def _dot(x: float, y: float, kind: int, tip: str) -> str:
    return rect(x - 3, y - 3, 6, 6, f"c{kind}", tip, 3.0)


def _legend(names: Sequence[str]) -> tuple[list[str], float]:
    """Return the legend in as many rows as it needs, and how far more than two rows move everything else down."""
    body, x, y = [], _CURVES_LEFT, 8.0
    for i, name in enumerate(names):
        wide = 34 + 6.2 * len(name)
        if x > _CURVES_LEFT and x + wide > WIDTH:
            x, y = _CURVES_LEFT, y + _LEGEND_ROW
        body += [line(x, y, x + 16, y, f"line s{i % len(SERIES)}"), text(x + 20, y + 4, name)]
        x += wide
    return body, max(0.0, y - 8.0 - _LEGEND_ROW)
