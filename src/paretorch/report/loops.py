"""The folded network as a diagram: the stored layers in a row, and the ways back among them. Plain SVG strings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby, pairwise

from paretorch.report.svg import WIDTH, figure, line, number, rect, text

Edge = tuple[int, int]

_ROW = 22.0
_BOX = 30.0  # the height of a layer
_LABEL = 16.0  # the room that the number of a layer needs
_DIGIT = 7.0


def folded_diagram(ident: str, title: str, runs: Sequence[int], words: str) -> str:
    """The stored layers in a row. Steps to the next layer are straight; others are arcs, numbered as they are taken:
    above those that go back, below those that leave layers out. A way that is taken again has several numbers."""
    count = max(runs)
    jumps: dict[Edge, list[int]] = {}
    for edge in pairwise(runs):
        if edge[1] != edge[0] + 1:
            jumps.setdefault(edge, []).append(1 + sum(map(len, jumps.values())))
    gap = (WIDTH - 40.0) / max(count, 1)
    wide = min(max(gap * 0.7, gap - 4.0), 54.0)
    every = math.ceil(_LABEL / gap)  # layers that are numbered: all, as long as there is room
    centres = [20.0 + gap * (layer - 0.5) for layer in range(count + 1)]
    back = _levels({edge: order for edge, order in jumps.items() if edge[1] <= edge[0]}, centres)
    skips = _levels({edge: order for edge, order in jumps.items() if edge[1] > edge[0]}, centres)
    end: Edge = (runs[-1], 0)
    above, below = _ports(back, centres, wide), _ports({**skips, end: 0}, centres, wide)
    top = 26.0 + _ROW * max(back.values(), default=0)
    middle, foot = top + _BOX / 2, top + _BOX
    bottom = foot + 14 + _ROW * max(skips.values(), default=0)

    body = [line(4, middle, centres[runs[0]] - wide / 2, middle, "axis")]
    body += [line(centres[i] + wide / 2, middle, centres[i + 1] - wide / 2, middle, "axis") for i in range(1, count)]
    out = below[end, 0]
    body += [line(out, foot, out, bottom, "axis"), text(out, bottom + 13, "out", "middle")]
    for i in range(1, count + 1):
        times = sum(layer == i for layer in runs)
        body.append(rect(centres[i] - wide / 2, top, wide, _BOX, "track", f"layer {i} runs {times} times", 5))
        if (i - 1) % every == 0:
            body.append(text(centres[i], middle + 4, str(i), "middle"))
    labels = []
    for colour, (edge, order) in enumerate(jumps.items()):
        up = edge in back
        ports, y, turn = (above, top, top - _ROW * back[edge]) if up else (below, foot, foot + _ROW * skips[edge])
        body += _arc(ports[edge, 0], ports[edge, 1], y, turn, f"s{colour % 4}", _tip(edge, order))
        place = (ports[edge, 0] + ports[edge, 1]) / 2
        labels.append(text(place, turn - 4 if up else turn + 13, _numbers(order), "middle", "label over"))
    return figure(ident, title, f"{words}.", bottom + 18, body + labels)  # numbers last: no arc is drawn over them


def _levels(jumps: dict[Edge, list[int]], centres: Sequence[float]) -> dict[Edge, int]:
    """How far each arc is from the layers, 1 2 …: short ones are near, and none meets another, or its number, at its height."""
    taken: dict[int, list[tuple[float, float]]] = {}
    found: dict[Edge, int] = {}
    for edge in sorted(jumps, key=lambda edge: abs(edge[1] - edge[0])):
        left, right = sorted((centres[edge[0]], centres[edge[1]]))
        room = max(0.0, _DIGIT * len(_numbers(jumps[edge])) - (right - left)) / 2
        left, right = left - room, right + room
        level = 1
        while any(left < other[1] and other[0] < right for other in taken.get(level, ())):
            level += 1
        taken.setdefault(level, []).append((left, right))
        found[edge] = level
    return found


def _ports(levels: dict[Edge, int], centres: Sequence[float], wide: float) -> dict[tuple[Edge, int], float]:
    """Where both ends of each arc touch their layers, side by side: those to the left are left, and the lowest outermost,
    so that no arc crosses one that begins or ends beside it. An end that is layer 0 touches nothing."""
    ends: dict[int, list[tuple[float, Edge, int]]] = {}
    for edge, level in levels.items():
        for which, layer in enumerate(edge):
            other = edge[1 - which]
            towards = 0 if not other else (other > layer) - (other < layer)
            place = towards / (1 + level) if towards else (0.0 if not other else 0.001 * (1 - 2 * which))
            ends.setdefault(layer, []).append((place, edge, which))
    found: dict[tuple[Edge, int], float] = {}
    for layer, here in ends.items():
        apart = min(9.0, (wide - 8.0) / max(len(here) - 1, 1)) if wide > 8.0 else 0.0
        for i, (_, edge, which) in enumerate(sorted(here)):
            found[edge, which] = centres[layer] + apart * (i - (len(here) - 1) / 2)
    return found


def _arc(start: float, end: float, y: float, turn: float, kind: str, tip: str) -> list[str]:
    """A way from one layer to another: up or down to `turn`, along, and to an arrow at its end."""
    towards = 6 if turn < y else -6
    way = f"M{number(start)} {number(y)}V{number(turn)}H{number(end)}V{number(y)}"
    head = f"M{number(end - 4)} {number(y - towards)}L{number(end)} {number(y)}L{number(end + 4)} {number(y - towards)}"
    return [
        f'<path d="{way}" class="line {kind}"><title>{tip}</title></path>',
        f'<path d="{head}" class="head {kind}"/>',
    ]


def _tip(edge: Edge, order: list[int]) -> str:
    return f"step {_numbers(order)}: from layer {edge[0]} to layer {edge[1]}"


def _numbers(order: list[int]) -> str:
    """Steps, three and more in a row as a range: 11-14, 17."""
    parts: list[str] = []
    for _, group in groupby(enumerate(order), key=lambda one: one[1] - one[0]):
        steps = [step for _, step in group]
        parts += [f"{steps[0]}-{steps[-1]}"] if len(steps) > 2 else map(str, steps)
    return ", ".join(parts)
