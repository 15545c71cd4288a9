"""The heat map over (α, ε)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paretorch.report.markup import WIDTH, figure, rect, text
from paretorch.workflows.tuning.landscape import Floats

STEPS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
"""The gaps to the best, in the unit of the errors, at which the colour of a heat map changes."""
_LETTER = 6.5
"""About the width of one, in the units of the picture."""


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
    words = [f"{eps:g}" for eps in epsilons]
    for j in range(0, len(words), math.ceil(_LETTER * (max(map(len, words)) + 1) / side)):
        body.append(text(left + (j + 0.5) * side, bottom + 14, words[j], "middle"))
    body += [text(left + len(epsilons) * side / 2, bottom + 29, "ε", "middle"), text(8, top + 4, "α")]
    legend, below = _legend(bottom + 38, steps, unit)
    said = f"Best {best:.4g}{unit}; {int(fine.sum())} settings known, {int((known & ~fine).sum())} diverged."
    return figure("heat", title, f"{title}. {said}", below + 20, [*body, *legend])


def _shade(gap: float, steps: Sequence[float]) -> int:
    return sum(gap > step for step in steps)


def _dots(table: Floats, fine: NDArray[np.bool_], left: float, bottom: float, side: float, tall: float) -> list[str]:
    found = []
    for j in np.flatnonzero(fine.any(axis=0)):
        i = int(np.where(fine[:, j], table[:, j], np.inf).argmin())
        x, y = left + (j + 0.5) * side - 2.5, bottom - (i + 0.5) * tall - 3
        found.append(rect(x, y, 5, 5, "best", "", 2.5))
    return found


def _legend(y: float, steps: Sequence[float], unit: str) -> tuple[list[str], float]:
    """What the colours mean, in as many rows as that needs, and where the last of them is."""
    words = [f"≤ {step:g}" for step in steps] + [f"> {steps[-1]:g}", "diverged", "not tried", "the best α of an ε"]
    kinds = [f"h{i}" for i in range(len(steps) + 1)] + ["diverged", "unknown", "best"]
    label = f"gap{unit}"
    body, x = [text(4, y + 9, label)], 10 + _LETTER * len(label)
    for word, kind in zip(words, kinds, strict=True):
        length = 12 + 6.2 * len(word)
        if x + length > WIDTH - 2:
            x, y = 10 + _LETTER * len(label), y + 15
        body += [rect(x, y, 9, 9, kind), text(x + 12, y + 9, word)]
        x += length + 7
    return body, y
