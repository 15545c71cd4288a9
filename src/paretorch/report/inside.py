"""Sections of a report for networks that have more than weights to tell about: images they make, quantized activations, shared layers."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from paretorch.deploy.measure.text import loops
from paretorch.report.charts import bar_rows
from paretorch.report.loops import folded_diagram
from paretorch.report.sharing import heat_map
from paretorch.report.tables import table

if TYPE_CHECKING:
    from paretorch.deploy.measure.report import Report


def pictures(samples: bytes | None) -> str:
    """Images that the network made, a PNG, inside the page itself; nothing where there is none."""
    if samples is None:
        return ""
    source = f"data:image/png;base64,{b64encode(samples).decode()}"
    image = f'<img src="{source}" alt="Images made by the network, side by side in rows">'
    caption = "<figcaption>Made by the network as it is saved, from noise by the seed of the run; none is chosen.</figcaption>"
    return f'<section><h2>Samples</h2><figure class="card">{image}{caption}</figure></section>'


def activations(report: Report) -> str:
    """Bits of every quantized activation, as bars and in numbers; nothing where there is none."""
    if not report.activations:
        return ""
    bars = bar_rows(
        "activations",
        "Bits of the activations",
        [(one.name, one.bits) for one in report.activations],
        form=lambda bits: f"{bits:.2f}",
        kind="c1",
    )
    rows = [
        {
            "activation": one.name,
            "bits": round(one.bits, 2),
            "from": one.low,
            "to": one.high,
            "groups by bits": ", ".join(f"{p}: {count}" for p, count in sorted(one.groups.items())),
        }
        for one in report.activations
    ]
    numbers = table("Every quantized activation: bits on average, range, and how many groups have how many bits", rows)
    card = f'<div class="grid"><div class="card"><h3>Bits</h3>{bars}</div></div>'
    return f"<section><h2>Activations</h2>{card}<h2>Activations in numbers</h2>{numbers}</section>"


def shared(report: Report, history: Sequence[Mapping[str, Any]] = ()) -> str:
    """Layers that are stored once and run in loops, each group as a diagram; mixtures of several in words.

    history: where its rows have similarities, the last of them are shown, as they were before the decisions were rounded.
    """
    parts = []
    last: Sequence[Any] = next((row["similarities"] for row in reversed(history) if "similarities" in row), [])
    for number, group in enumerate(report.shared, 1):
        words = loops(group)
        drawn = (
            folded_diagram(f"shared-{number}", f"Shared layers, group {number}", group.runs, words)
            if group.runs
            else ""
        )
        heading = f"Group {number}: {len(group.layers)} layers are stored as {len(group.stored)}"
        names = f"{group.layers[0]} … {group.layers[-1]}"
        parts.append(f'<div class="card"><h3>{heading}</h3><p>{escape(names)}: {escape(words)}.</p>{drawn}</div>')
        if number <= len(last) and len(matrix := last[number - 1]) == len(group.layers):
            short = [name.removesuffix(".weight") for name in group.layers]
            alike = heat_map(f"alike-{number}", f"Similarity of the layers, group {number}", short, matrix)
            parts.append(f'<div class="card"><h3>Group {number}: how alike the layers are</h3>{alike}</div>')
    return f'<section><h2>Shared layers</h2><div class="grid">{"".join(parts)}</div></section>' if parts else ""
