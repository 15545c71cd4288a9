"""The heat map over (α, ε), and files that hold one SVG picture each, with its colours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paretorch.optim.tuning.landscape import Floats
from paretorch.report.svg import WIDTH, figure, rect, text

STEPS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
"""The gaps to the best, in the unit of the errors, at which the colour of a heat map changes."""
SERIES = ("#1f6feb", "#b45309", "#0f766e", "#7c3aed", "#6b7280", "#be185d")
_HEAT = ("#08306b", "#1c5ca3", "#3f8fc5", "#79b7d9", "#b3d3e8", "#d9e7f5", "#f2f6fb")
_STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#57606a}svg{background:#fff}.grid{stroke:#e4e8ec}.axis{stroke:#57606a}"
    ".line{fill:none;stroke-width:1.8;stroke-linejoin:round}.band{opacity:.15}.best{fill:#ffb000}"
    ".diverged{fill:#c9c9c9}.unknown{fill:none;stroke:#e4e8ec}"
    + "".join(f".h{i}{{fill:{colour}}}" for i, colour in enumerate(_HEAT))
    + "".join(f".s{i}{{stroke:{colour}}}.b{i},.c{i}{{fill:{colour}}}" for i, colour in enumerate(SERIES))
    + ".track{fill:#eef1f4}"
)


def heat_map(
    title: str,
    alphas: Sequence[float],
    epsilons: Sequence[float],
    errors: ArrayLike,
    tried: ArrayLike | None = None,
    steps: Sequence[float] = STEPS,
    unit: str = " %",
) -> str:
    """A cell for each setting, α upwards and ε to the right, dark where it is good, grey where it diverged.

    errors: [α, ε]; not finite: diverged. tried: which settings are known at all (default: all). A yellow dot marks the best
    α of each ε: a straight line of dots means that the two can be tuned apart.
    """
    table = np.array(errors, dtype=np.float64)
    known = np.ones(table.shape, bool) if tried is None else np.asarray(tried, bool)
    fine = known & np.isfinite(table)
    best = float(table[fine].min()) if fine.any() else 0.0
    left, top, side = 52.0, 14.0, (WIDTH - 62.0) / len(epsilons)
    tall = min(side, 17.0)
    bottom = top + tall * len(alphas)
    body = []
    for i, alpha in enumerate(alphas):
        y = bottom - (i + 1) * tall
        if i % 2 == 0 or len(alphas) < 12:
            body.append(text(left - 5, y + tall / 2 + 4, f"{alpha:g}", "end"))
        for j, eps in enumerate(epsilons):
            gap = table[i, j] - best
            kind = "unknown" if not known[i, j] else "diverged" if not fine[i, j] else f"h{_shade(gap, steps)}"
            said = "not tried" if not known[i, j] else "diverged" if not fine[i, j] else f"{table[i, j]:.4g}{unit}"
            tip = f"α = {alpha:g}, ε = {eps:g}: {said}"
            body.append(rect(left + j * side, y, side - 1, tall - 1, kind, tip, 1.0))
    body += _dots(table, fine, left, bottom, side, tall)
    for j in range(0, len(epsilons), max(1, len(epsilons) // 7)):
        body.append(text(left + (j + 0.5) * side, bottom + 14, f"{epsilons[j]:g}", "middle"))
    body += [text(left + len(epsilons) * side / 2, bottom + 29, "ε", "middle"), text(8, top + 4, "α")]
    body += _legend(left, bottom + 38, steps, unit)
    said = f"Best {best:.4g}{unit}; {int(fine.sum())} settings known, {int((known & ~fine).sum())} diverged."
    return figure("heat", title, f"{title}. {said}", bottom + 58, body)


def save(chart: str, file: Path) -> None:
    """Write a chart as a file of its own, with its colours."""
    opening, rest = chart.split(">", 1)
    head = opening.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    file.write_text(f"{head}><style>{_STYLE}</style>{rest}\n", encoding="utf-8")


def _shade(gap: float, steps: Sequence[float]) -> int:
    return sum(gap > step for step in steps)


def _dots(table: Floats, fine: NDArray[np.bool_], left: float, bottom: float, side: float, tall: float) -> list[str]:
    found = []
    for j in np.flatnonzero(fine.any(axis=0)):
        i = int(np.where(fine[:, j], table[:, j], np.inf).argmin())
        x, y = left + (j + 0.5) * side - 2.5, bottom - (i + 0.5) * tall - 3
        found.append(rect(x, y, 5, 5, "best", "", 2.5))
    return found


def _legend(left: float, y: float, steps: Sequence[float], unit: str) -> list[str]:
    wide = (WIDTH - left - 10) / (len(steps) + 2)
    words = [f"≤ {step:g}" for step in steps] + [f"> {steps[-1]:g}", "diverged"]
    kinds = [f"h{i}" for i in range(len(steps) + 1)] + ["diverged"]
    body = [text(4, y + 9, f"gap{unit}")]
    for i, (word, kind) in enumerate(zip(words, kinds, strict=True)):
        body += [rect(left + i * wide, y, 9, 9, kind), text(left + i * wide + 12, y + 9, word)]
    return body
