"""similarities.html: how alike the layers of a network are, over the epochs of a run or over several runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from paretorch.report.frame import write_page
from paretorch.report.sharing import heat_map

Matrix = Sequence[Sequence[float]]


def write_similarities(path: str | os.PathLike[str], *, title: str, columns: Mapping[str, Sequence[Matrix]]) -> Path:
    """One section a group of layers, one picture a column; each column has a matrix for every group."""
    sections = [
        f"<header><h1>{escape(title)}</h1><p>The fuller a square, the more alike two layers.</p></header><main>"
    ]
    for group, matrices in enumerate(zip(*columns.values(), strict=True), 1):
        cards = []
        for place, (name, matrix) in enumerate(zip(columns, matrices, strict=True), 1):
            layers = ["layer"] * len(matrix)  # the picture numbers them
            picture = heat_map(f"lsm-{group}-{place}", f"Similarity, group {group}, {name}", layers, matrix)
            cards.append(f'<div class="card"><h3>{escape(name)}</h3>{picture}</div>')
        sections.append(f'<section><h2>Group {group}</h2><div class="grid">{"".join(cards)}</div></section>')
    return write_page(path, title, [*sections, "</main>"])
