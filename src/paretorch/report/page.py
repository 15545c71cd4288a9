"""report.html: one self-contained page. All text from outside the library is escaped."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from paretorch.deploy.measure.latency import Latency
from paretorch.deploy.measure.record import Report, loops_of
from paretorch.deploy.measure.structure import MACS
from paretorch.report.charts import bar_rows, histogram, line_chart, plain, stacked_bar
from paretorch.report.markup import is_number, label, percent, table, write_page
from paretorch.report.sharing import folded_diagram, heat_map
from paretorch.support.text import human

_KINDS_IN_WORDS = {
    "codes": "codes: the kept weights' values",
    "masks": "masks: which weights are zero",
    "maps": "maps: which weight has how many bits",
    "rest": "rest: names, tables, header",
}
_TOGETHER = ("loss", "accuracy")
_FIRST = ("loss", "accuracy", "sparsity", "bits")
_NOT_SHOWN = {"epoch", "step", "seconds"}
# MACs are never shown alone: zeros save MACs, but only some hardware is faster for it.
_NOT_TIMED = (
    "<p>Not measured for this page, and MACs do not tell it: <code>pare report RUN --latency --html page.html</code> "
    "measures it on this machine's CPU.</p>"
)


def write_html(
    path: str | os.PathLike[str],
    *,
    title: str,
    comparison: Sequence[Mapping[str, Any]],
    report: Report,
    history: Sequence[Mapping[str, Any]],
    samples: bytes | None = None,
) -> Path:
    """Write the page and return its path.

    Args:
        comparison: One row per network, keys as columns (`accuracy`, `sparsity` are fractions, `bytes` and `macs` counts).
        report: What `paretorch.report.report` measured.
        history: The rows of a run's metrics.jsonl.
        samples: A PNG of images from the network.
    """
    sections = [_head(title, report), "<main>", _comparison(comparison), _samples(samples)]
    sections += [_bytes(report), _layers(report), _activations(report), _shared(report, history)]
    sections += [_history(history), _latency(report), "</main>", _foot()]
    return write_page(path, title, sections)


def _head(title: str, report: Report) -> str:
    size = report.sizes
    tiles = [("on disk", human(size.total), f"{size.total:,} bytes")]
    smaller = size.total <= report.dense
    times = f"{report.dense / max(size.total, 1):.1f} ×" if smaller else f"by {human(size.total - report.dense)}"
    tiles.append(("smaller" if smaller else "larger", times, f"than {human(report.dense)} dense"))
    if report.accuracy is not None:
        tiles.append(("accuracy", f"{report.accuracy:.2%}", ""))
    tiles.append(
        ("bits per weight", f"{report.bits:.2f}", f"{report.bits_on_disk:.2f} on disk, masks and map included")
    )
    gone = f", {report.gone:,} of these gone with their channels" if report.gone else ""
    tiles.append(("sparsity", f"{report.sparsity:.1%}", f"of all {report.built:,} weights{gone}"))
    tiles.append(("parameters", human(report.parameters, ""), f"{report.parameters:,}, without buffers"))
    if report.macs is not None and report.macs_kept is not None:
        tiles.append(("MACs", human(report.macs, ""), f"{human(report.macs_kept, '')} with a weight that is not zero"))
        own = [entry for entry in report.latency if entry.name == report.name] or report.latency
        timed = min(own, key=lambda entry: entry.median_ms, default=None)
        note = "" if timed is None else f"batch {timed.batch}, {timed.runtime}"
        if timed is not None and timed.runtime in report.speedups:
            note += f", {report.speedups[timed.runtime]:.2f} × as fast as dense"
        tiles.append(("latency", "not measured" if timed is None else f"{timed.median_ms:.3g} ms", note))
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(note)}</small></dd></div>"
        for name, value, note in tiles
    )
    return f'<header><h1>{escape(title)}</h1><p>{escape(report.name)}</p><dl class="tiles">{cells}</dl></header>'


def _comparison(rows: Sequence[Mapping[str, Any]]) -> str:
    return f"<section><h2>Comparison</h2>{table('Dense and compressed, side by side', rows)}</section>" if rows else ""


def _card(title: str, content: str) -> str:
    return f'<div class="card"><h3>{escape(title)}</h3>{content}</div>'


def _bytes(report: Report) -> str:
    parts = [(_KINDS_IN_WORDS[kind], float(size)) for kind, size in report.sizes.by_kind.items()]
    cards = [_card("Bytes by kind", stacked_bar("kinds", "Bytes on disk by kind", parts, form=human))]
    if report.precisions:
        counts = {("gone" if p == 0 else str(p)): count for p, count in report.precisions.items()}
        cards.append(_card("Weights by precision", histogram("bits", "Weights by precision", counts, x_label="bits")))
    return f'<section><h2>Where the bytes go</h2><div class="grid">{"".join(cards)}</div></section>'


def _layers(report: Report) -> str:
    if not report.layers:
        return ""
    names = [layer.name.removesuffix(".weight") for layer in report.layers]
    values: list[tuple[str, list[float], float | None, Callable[[float], str]]] = [
        ("Sparsity", [layer.sparsity for layer in report.layers], 1.0, lambda value: f"{value:.1%}"),
        ("Bytes", [layer.size.total for layer in report.layers], None, human),
        ("Bits per weight", [layer.size.bits for layer in report.layers], None, lambda value: f"{value:.2f}"),
        ("Bits per weight on disk", [layer.bits_on_disk for layer in report.layers], None, lambda bits: f"{bits:.2f}"),
    ]
    cards = []
    for i, (title, column, full, form) in enumerate(values):
        bars = list(zip(names, column, strict=True))
        chart = bar_rows(f"layers-{i}", f"{title} by layer", bars, full=full, form=form, kind=f"c{i}")
        cards.append(_card(title, chart))
    rows = [
        {
            "layer": layer.name,
            "shape": " × ".join(map(str, layer.size.shape)),
            "stored as": layer.size.coding,
            "sparsity": layer.sparsity,
            "bits": f"{layer.size.bits:.2f}",
            "bits_on_disk": f"{layer.bits_on_disk:.2f}",
            **{kind: f"{size:,.0f}" for kind, size in layer.size.by_kind.items()},
            "bytes": layer.size.total,
            **({"macs": layer.macs} if report.macs is not None else {}),
        }
        for layer in report.layers
    ]
    foot = {"layer": "file", "sparsity": report.sparsity, "bits": f"{report.bits:.2f}", "bytes": report.sizes.total}
    foot |= {kind: f"{size:,.0f}" for kind, size in report.sizes.by_kind.items()} | {"macs": report.macs}
    numbers = table("Every layer; codes, masks, maps and rest in bytes", rows, foot)
    return (
        f'<section><h2>Layers</h2><div class="grid">{"".join(cards)}</div><h2>Layers in numbers</h2>{numbers}</section>'
    )


def _history(rows: Sequence[Mapping[str, Any]]) -> str:
    charts = history_charts(rows)
    if not charts:
        return ""
    cards = "".join(_card(title[:1].upper() + title[1:], svg) for title, svg in charts)
    return f'<section><h2>Training</h2><div class="grid">{cards}</div></section>'


def history_charts(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return title and SVG of each chart of the metrics: loss and accuracy with their test values, every other by itself."""
    axis = "epoch" if any("epoch" in row for row in rows) else "step" if any("step" in row for row in rows) else ""
    series: dict[str, list[tuple[float, float]]] = {}
    marks: list[tuple[float, str]] = []
    phase: Any = None
    for position, row in enumerate(rows):
        x = row.get(axis, position)
        if not is_number(x):
            continue
        if phase is not None and row.get("phase", phase) != phase:
            marks.append((float(x), str(row["phase"])))
        phase = row.get("phase", phase)
        for key, value in row.items():
            if key not in _NOT_SHOWN and is_number(value):
                series.setdefault(key, []).append((float(x), float(value)))
    charts = []
    for number, (title, keys) in enumerate(_keys_by_chart(series).items()):
        chosen = {label(key): series[key] for key in keys}
        form = percent if title.endswith(("accuracy", "sparsity")) else plain
        heading = label(title)
        svg = line_chart(
            f"history-{number}", heading, chosen, x_label=axis or "row", marks=_last_marks(marks), form=form
        )
        charts.append((heading, svg))
    return charts


def _keys_by_chart(series: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, list[str]]:
    """Return the keys of each chart, for all metrics that have two points or more and change."""
    groups: dict[str, list[str]] = {}
    for key, points in series.items():
        if len(points) < 2 or len({y for _, y in points}) < 2:
            continue
        title = next((word for word in _TOGETHER if key == word or key.endswith(f"_{word}")), key)
        groups.setdefault(title, []).append(key)
    order = sorted(groups, key=lambda title: _FIRST.index(title) if title in _FIRST else len(_FIRST))
    return {title: groups[title] for title in order}


def _last_marks(marks: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Keep the last mark of phases that begin at the same point (harden, then fine-tuning)."""
    return [(x, word) for x, word in dict(reversed(marks)).items()][::-1]


def _latency(report: Report) -> str:
    alone = all(entry.isolated for entry in report.latency)
    rows = [
        {
            "network": entry.name,
            "runtime": entry.runtime,
            "median, ms": entry.median_ms,
            "lowest": entry.low_ms,
            "highest": entry.high_ms,
            "batch": entry.batch,
            "threads": entry.threads,
            **({} if alone else {"alone": "yes" if entry.isolated else "no"}),
            **_against_dense(report, entry),
        }
        for entry in report.latency
    ]
    where = "in a process of its own" if alone else "in a process of its own where one could be exported"
    caption = f"CPU, {where}; lowest and highest of the rounds' medians"
    if not rows and report.macs is None:
        return ""
    return f"<section><h2>Latency</h2>{table(caption, rows) if rows else _NOT_TIMED}</section>"


def _against_dense(report: Report, entry: Latency) -> dict[str, str]:
    """Return the last column of the table: a ratio, or "no difference" if the measured ranges overlap."""
    if not report.timed_against_dense:
        return {}
    if entry.name != report.name or entry.runtime not in report.timed_against_dense:
        return {"faster than dense": "–"}
    ratio = report.speedups.get(entry.runtime)
    return {"faster than dense": "no difference" if ratio is None else f"{ratio:.2f} ×"}


def _foot() -> str:
    return (
        "<footer><p>Weights are tensors of two or more dimensions. Bits count a weight as its precision, or as what tells a few "
        "values apart, a dropped one as 0, any other as its dtype; bits on disk add masks, the map of precisions and the tables. "
        f"{MACS}. 1 kB is 1000 bytes.</p></footer>"
    )


def _samples(samples: bytes | None) -> str:
    """Return a section with images from the network, a PNG; an empty string if there are none."""
    if samples is None:
        return ""
    source = f"data:image/png;base64,{b64encode(samples).decode()}"
    image = f'<img src="{source}" alt="Images made by the network, side by side in rows">'
    caption = "<figcaption>Made by the network as it is saved, from noise by the seed of the run; none is chosen.</figcaption>"
    return f'<section><h2>Samples</h2><figure class="card">{image}{caption}</figure></section>'


def _activations(report: Report) -> str:
    """Return a section with the bits of every quantized activation; an empty string if there are none."""
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


def _shared(report: Report, history: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return a section with a diagram of each group of layers that run in loops, or a description of mixtures.

    Args:
        history: If its rows have similarities, the last are shown, from before the decisions were rounded.
    """
    parts = []
    last: Sequence[Any] = next((row["similarities"] for row in reversed(history) if "similarities" in row), [])
    for number, group in enumerate(report.shared, 1):
        words = loops_of(group)
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
