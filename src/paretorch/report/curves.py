"""Curves with the spread of their repetitions, as one SVG picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paretorch.report.picture import SERIES
from paretorch.report.svg import WIDTH, figure, line, path, rect, text, ticks

_LEFT, _RIGHT, _TOP, _BOTTOM, _HEIGHT = 48.0, WIDTH - 20.0, 52.0, 228.0, 270.0
_ROW = 14.0  # of the legend


class Curve(NamedTuple):
    """A line, and the band around it (equal to the line where there is no spread)."""

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
    """One line per series with its band; x is linear or logarithmic.

    y begins at 0; with a floor it is logarithmic, begins there, and what is below is drawn on it.
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
    top, bottom = _TOP + lower, _BOTTOM + lower

    def at(x: NDArray[np.float64], y: NDArray[np.float64]) -> list[tuple[float, float]]:
        across = _LEFT + (x - start) / span * (_RIGHT - _LEFT)
        share = y / y_ticks[-1] if floor is None else np.log(np.maximum(y / floor, 1)) / math.log(y_ticks[-1] / floor)
        up = bottom - share * (bottom - top)
        return list(zip(across.tolist(), up.tolist(), strict=True))

    body = [text(_LEFT, top - 9, y_label)]
    for tick in y_ticks:
        y = at(np.zeros(1), np.array([tick]))[0][1]
        body += [line(_LEFT, y, _RIGHT, y, "grid"), text(_LEFT - 6, y + 4, f"{tick:.4g}", "end")]
    marks = range(math.ceil(start), math.floor(start + span) + 1) if log_x else ticks(start, start + span, 6)
    within = [float(mark) for mark in marks if start <= mark <= start + span]
    for tick in within if np.ptp(xs) else [float(xs[0])]:
        said = f"{10**tick:g}" if log_x else f"{tick:g}"
        body.append(text(at(np.array([tick]), np.zeros(1))[0][0], bottom + 15, said, "middle"))
    body += [line(_LEFT, bottom, _RIGHT, bottom, "axis")]
    body += [text((_LEFT + _RIGHT) / 2, bottom + 31, x_label, "middle")]
    for i, (name, (x, middle, low, high)) in enumerate(rows.items()):
        kind = i % len(SERIES)
        body.append(path(at(x, high) + at(x, low)[::-1], f"band b{kind}", name))
        places = at(x, middle)
        # A line of one point would not be seen.
        body.append(path(places, f"line s{kind}", name) if len(places) > 1 else _dot(*places[0], kind, name))
    body += legend
    said = "; ".join(f"{name} ends at {values[1][-1]:.4g}" for name, values in rows.items())
    return figure("curves", title, f"{title}. {said}.", _HEIGHT + lower, body)


def _decades(floor: float, top: float) -> list[float]:
    """The floor, and ten times as much until the top is below."""
    return [floor * 10**i for i in range(max(1, math.ceil(math.log10(max(top, floor) / floor))) + 1)]


def _dot(x: float, y: float, kind: int, tip: str) -> str:
    return rect(x - 3, y - 3, 6, 6, f"c{kind}", tip, 3.0)


def _legend(names: Sequence[str]) -> tuple[list[str], float]:
    """The names in as many rows as they need, and how much lower all else is where these are more than two."""
    body, x, y = [], _LEFT, 8.0
    for i, name in enumerate(names):
        wide = 34 + 6.2 * len(name)
        if x > _LEFT and x + wide > WIDTH:
            x, y = _LEFT, y + _ROW
        body += [line(x, y, x + 16, y, f"line s{i % len(SERIES)}"), text(x + 20, y + 4, name)]
        x += wide
    return body, max(0.0, y - 8.0 - _ROW)
