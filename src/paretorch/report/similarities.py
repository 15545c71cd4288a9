"""similarities.html: how alike the layers of a network are, over the epochs of a run or over several runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from paretorch.report.frame import write_page
from paretorch.report.sharing import group_title, heat_map

Matrix = Sequence[Sequence[float]]


def write_similarities(
    path: str | os.PathLike[str],
    *,
    title: str,
    groups: Sequence[Sequence[str]],
    columns: Mapping[str, Sequence[Matrix]],
) -> Path:
    """One section a group of layers (their names), one picture a column; each column has a matrix for every group."""
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
