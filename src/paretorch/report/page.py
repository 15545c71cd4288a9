"""report.html: one page, no network, nothing to install. Every word that is not ours is escaped."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paretorch.deploy.measure.sizes import KINDS
from paretorch.deploy.measure.text import human
from paretorch.deploy.structure import MACS
from paretorch.report.charts import bar_rows, histogram, stacked_bar
from paretorch.report.frame import write_page
from paretorch.report.history import history_charts
from paretorch.report.inside import activations, pictures, shared
from paretorch.report.tables import table

if TYPE_CHECKING:
    from paretorch.deploy.measure.latency import Latency
    from paretorch.deploy.measure.report import Report

_WHAT = {
    "codes": "codes: the kept weights' values",
    "masks": "masks: which weights are zero",
    "maps": "maps: which weight has how many bits",
    "rest": "rest: names, tables, header",
}
# MACs never stand alone: zeros save them on paper, and time only on hardware that skips zeros.
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

    comparison: one row per network, keys as columns (`accuracy`, `sparsity` are fractions, `bytes` and `macs` counts).
    history: the rows of a run's metrics.jsonl.
    samples: a PNG of images that the network made.
    """
    sections = [_head(title, report), "<main>", _comparison(comparison), pictures(samples)]
    sections += [_bytes(report), _layers(report), activations(report), shared(report, history)]
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
    tiles.append(("sparsity", f"{report.sparsity:.1%}", f"of {report.weights:,} weights"))
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
    parts = [(_WHAT[kind], float(getattr(report.sizes, kind))) for kind in KINDS]
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
        (
            "Bits per weight on disk",
            [layer.bits_on_disk for layer in report.layers],
            None,
            lambda value: f"{value:.2f}",
        ),
    ]
    cards = [
        _card(
            title,
            bar_rows(
                f"layers-{i}",
                f"{title} by layer",
                list(zip(names, column, strict=True)),
                full=full,
                form=form,
                kind=f"c{i}",
            ),
        )
        for i, (title, column, full, form) in enumerate(values)
    ]
    rows = [
        {
            "layer": layer.name,
            "shape": " × ".join(map(str, layer.size.shape)),
            "stored as": layer.size.coding,
            "sparsity": layer.sparsity,
            "bits": f"{layer.size.bits:.2f}",
            "bits_on_disk": f"{layer.bits_on_disk:.2f}",
            **{kind: f"{getattr(layer.size, kind):,.0f}" for kind in KINDS},
            "bytes": layer.size.total,
            **({"macs": layer.macs} if report.macs is not None else {}),
        }
        for layer in report.layers
    ]
    foot = {"layer": "file", "sparsity": report.sparsity, "bits": f"{report.bits:.2f}", "bytes": report.sizes.total}
    foot |= {kind: f"{getattr(report.sizes, kind):,.0f}" for kind in KINDS} | {"macs": report.macs}
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
    if not report.speedups:
        return {}
    own = entry.name == report.name and entry.runtime in report.speedups
    return {"faster than dense": f"{report.speedups[entry.runtime]:.2f} ×" if own else "–"}


def _foot() -> str:
    return (
        "<footer><p>Weights are tensors of two or more dimensions. Bits count a weight as its precision, or as what tells a few "
        "values apart, a dropped one as 0, any other as its dtype; bits on disk add masks, the map of precisions and the tables. "
        f"{MACS}. 1 kB is 1000 bytes.</p></footer>"
    )
