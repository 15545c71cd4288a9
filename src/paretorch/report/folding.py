"""folding.html: what a folded network came to, its similarities and its loops, on one page without a network."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from paretorch.deploy.text import human
from paretorch.report.frame import write_page
from paretorch.report.sharing import folded_diagram, group_title, heat_map
from paretorch.report.tables import table

if TYPE_CHECKING:
    from paretorch.sharing import Folding, Similarity


def write_folding(
    path: str | os.PathLike[str],
    *,
    title: str,
    similarities: Sequence[Similarity],
    foldings: Sequence[Folding],
    sizes: tuple[int, int],
) -> Path:
    """Write the page and return its path; sizes: bytes of the file before and after folding."""
    before, after = sizes
    sections = [
        f"<header><h1>{escape(title)}</h1><p>{escape(human(before))} → {escape(human(after))} on disk</p></header>"
    ]
    for number, (similarity, folding) in enumerate(zip(similarities, foldings, strict=True), 1):
        names = [name.removesuffix(".weight") for name in similarity.layers]
        rows = [[float(value) for value in row] for row in similarity.matrix]
        cards = [
            ("Similarity of the layers", heat_map(f"lsm-{number}", f"Similarity, group {number}", names, rows)),
            ("Folded", folded_diagram(f"fold-{number}", f"Folded group {number}", folding.runs, folding.words)),
        ]
        inside = "".join(f'<div class="card"><h3>{name}</h3>{svg}</div>' for name, svg in cards)
        numbers = table(
            "Every layer: the stored layer that runs in its place, its scale, and how far its weight is from the original",
            [
                {"layer": name, "runs": run, "scale": f"{scale:.4g}", "error": f"{error:.2%}"}
                for name, run, scale, error in zip(names, folding.runs, folding.scales, folding.errors, strict=True)
            ],
        )
        sections.append(
            f"<main><section><h2>{escape(group_title(number, names))}</h2>"
            f'<p>{escape(_sentence(folding))}</p><div class="grid">{inside}</div><h2>Layers in numbers</h2>{numbers}</section></main>'
        )
    return write_page(path, title, sections)


def _sentence(folding: Folding) -> str:
    count, left, stored = len(folding.runs), max(folding.runs), folding.stored
    kept = "" if stored == left else f", mixed from {stored} that {'is' if stored == 1 else 'are'} stored"
    return f"{count} layers are {left}{kept}; {folding.words}."
