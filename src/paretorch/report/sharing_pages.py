"""Pages about layers that share: folding.html with its section in report.html, and similarities.html.

folding.html         what a folded network came to: its similarities, its loops, scales and errors
similarities.html    how alike the layers of a network are, over the epochs of a run or over several runs
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from paretorch.deploy.measure.text import human
from paretorch.report.files import write_page
from paretorch.report.sharing import folded_diagram, group_title, heat_map
from paretorch.report.tables import table
from paretorch.support.files import write_file

_BEGIN, _END = '<section id="folded">', "</section><!-- folded -->"
Matrix = Sequence[Sequence[float]]


@dataclass(frozen=True)
class FoldedGroup:
    """How the layers of one group fold.

    Args:
        layers: Their names.
        runs: For each layer, the stored layer (1, 2 …) that runs in its place.
        scales: For each layer, the factor of the stored one.
        errors: For each layer, how far its weight is from the original, relative to it.
        stored: Tensors of the group in the network.
        words: The loops in words.
        similarity: The absolute cosine of each pair of layers, before folding.
    """

    layers: Sequence[str]
    runs: Sequence[int]
    scales: Sequence[float]
    errors: Sequence[float]
    stored: int
    words: str
    similarity: Matrix


def write_folding(
    path: str | os.PathLike[str],
    *,
    title: str,
    groups: Sequence[FoldedGroup],
    sizes: tuple[int, int],
) -> Path:
    """Write folding.html and return its path.

    Args:
        sizes: Bytes of the file before and after folding.
    """
    before, after = sizes
    sections = [
        f"<header><h1>{escape(title)}</h1><p>{escape(human(before))} → {escape(human(after))} on disk</p></header>"
    ]
    for number, group in enumerate(groups, 1):
        names = [name.removesuffix(".weight") for name in group.layers]
        matrix = group.similarity
        cards = [
            ("Similarity of the layers", heat_map(f"lsm-{number}", f"Similarity, group {number}", names, matrix)),
            ("Folded", folded_diagram(f"fold-{number}", f"Folded group {number}", group.runs, group.words)),
        ]
        inside = "".join(f'<div class="card"><h3>{name}</h3>{svg}</div>' for name, svg in cards)
        numbers = table(
            "Every layer: the stored layer that runs in its place, its scale, and how far its weight is from the original",
            [
                {"layer": name, "runs": run, "scale": f"{scale:.4g}", "error": f"{error:.2%}"}
                for name, run, scale, error in zip(names, group.runs, group.scales, group.errors, strict=True)
            ],
        )
        sections.append(
            f"<main><section><h2>{escape(group_title(number, names))}</h2>"
            f'<p>{escape(_sentence(group))}</p><div class="grid">{inside}</div><h2>Layers in numbers</h2>{numbers}</section></main>'
        )
    return write_page(path, title, sections)


def add_to_report(path: Path, groups: Sequence[FoldedGroup]) -> None:
    """Add the folded network to the report of its run, replacing an earlier one; do nothing if there is no report."""
    if not path.exists():
        return
    cards = [
        f'<div class="card"><h3>{escape(group_title(number, group.layers))}</h3><p>{escape(_sentence(group))}</p>'
        f"{folded_diagram(f'folded-{number}', f'Folded group {number}', group.runs, group.words)}</div>"
        for number, group in enumerate(groups, 1)
    ]
    heading = "<h2>Folded</h2><p>folded.pare, by <code>pare fold</code>; folding.html has scales and errors.</p>"
    section = f'{_BEGIN}{heading}<div class="grid">{"".join(cards)}</div>{_END}'
    page = re.sub(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", "", path.read_text("utf-8"), flags=re.DOTALL)
    before, main, after = page.rpartition("</main>")
    write_file(path, f"{before}{section}{main}{after}".encode("utf-8", "replace"))


def _sentence(group: FoldedGroup) -> str:
    count, left, stored = len(group.runs), max(group.runs), group.stored
    kept = "" if stored == left else f", mixed from {stored} that {'is' if stored == 1 else 'are'} stored"
    return f"{count} layers are {left}{kept}; {group.words}."


def write_similarities(
    path: str | os.PathLike[str],
    *,
    title: str,
    groups: Sequence[Sequence[str]],
    columns: Mapping[str, Sequence[Matrix]],
) -> Path:
    """Write similarities.html: one section per group of layers, one picture per column.

    Args:
        groups: The names of the layers of each group.
        columns: By heading (an epoch, a run), one matrix per group.
    """
    sections = [
        f"<header><h1>{escape(title)}</h1><p>The fuller a square, the more alike two layers.</p></header><main>"
    ]
    for number, (layers, *matrices) in enumerate(zip(groups, *columns.values(), strict=True), 1):
        names = [name.removesuffix(".weight") for name in layers]
        cards = []
        for place, (column, matrix) in enumerate(zip(columns, matrices, strict=True), 1):
            picture = heat_map(f"lsm-{number}-{place}", f"Similarity, group {number}, {column}", names, matrix)
            cards.append(f'<div class="card"><h3>{escape(column)}</h3>{picture}</div>')
        heading = escape(group_title(number, layers))
        sections.append(f'<section><h2>{heading}</h2><div class="grid">{"".join(cards)}</div></section>')
    return write_page(path, title, [*sections, "</main>"])
