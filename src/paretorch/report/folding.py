"""folding.html and its diagrams in report.html: what a folded network came to, its similarities and its loops, on pages without a network."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from paretorch.deploy.codec.container import write_file
from paretorch.deploy.measure.text import human
from paretorch.report.frame import write_page
from paretorch.report.loops import folded_diagram
from paretorch.report.sharing import group_title, heat_map
from paretorch.report.tables import table

if TYPE_CHECKING:
    from paretorch.methods.sharing import Folding, Similarity

_BEGIN, _END = '<section id="folded">', "</section><!-- folded -->"


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


def add_to_report(path: Path, foldings: Sequence[Folding]) -> None:
    """Put the folded network into the report of its run, in the place of an earlier one; nothing where there is no report."""
    if not path.exists():
        return
    cards = [
        f'<div class="card"><h3>{escape(group_title(number, folding.layers))}</h3><p>{escape(_sentence(folding))}</p>'
        f"{folded_diagram(f'folded-{number}', f'Folded group {number}', folding.runs, folding.words)}</div>"
        for number, folding in enumerate(foldings, 1)
    ]
    told = "<h2>Folded</h2><p>folded.pare, by <code>pare fold</code>; folding.html has scales and errors.</p>"
    section = f'{_BEGIN}{told}<div class="grid">{"".join(cards)}</div>{_END}'
    page = re.sub(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", "", path.read_text("utf-8"), flags=re.DOTALL)
    before, main, after = page.rpartition("</main>")
    write_file(path, f"{before}{section}{main}{after}".encode("utf-8", "replace"))


def _sentence(folding: Folding) -> str:
    count, left, stored = len(folding.runs), max(folding.runs), folding.stored
    kept = "" if stored == left else f", mixed from {stored} that {'is' if stored == 1 else 'are'} stored"
    return f"{count} layers are {left}{kept}; {folding.words}."
