"""HTML tables: rows of numbers and words, with units, for readers and screen readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from paretorch.deploy.measure.text import human

_PERCENT = ("accuracy", "sparsity", "share")
_UNITS = {"bytes": "B", "dense_bytes": "B", "macs": "", "parameters": "", "weights": ""}
_LABELS = {
    "macs": "MACs",
    "latency_ms": "latency, ms",
    "bytes": "on disk",
    "bits_on_disk": "bits on disk",
    "lr": "learning rate",
}


def label(key: str) -> str:
    """Return a key as a heading: 'test_accuracy' is 'test accuracy'."""
    return _LABELS.get(key, key.replace("_", " "))


def show(key: str, value: Any) -> str:
    """Return a value as text: fractions as percent, bytes and counts with a prefix, None as a dash."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if key.endswith(_PERCENT):
            return f"{value:.2%}"
        if key in _UNITS:
            return human(float(value), _UNITS[key]).strip()
        return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    return str(value)


def table(caption: str, rows: Sequence[Mapping[str, Any]], foot: Mapping[str, Any] | None = None) -> str:
    """Return an HTML table; its columns are the keys in order of appearance, the first names the row."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    head = "".join(f'<th scope="col">{escape(label(str(key)))}</th>' for key in keys)
    body = "".join(_row(keys, row) for row in rows)
    end = f"<tfoot>{_row(keys, foot)}</tfoot>" if foot else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>{end}</table></div>"
    )


def _row(keys: Sequence[str], row: Mapping[str, Any]) -> str:
    cells = [escape(show(str(key), row.get(key, ""))) for key in keys]
    return f'<tr><th scope="row">{cells[0]}</th>' + "".join(f"<td>{cell}</td>" for cell in cells[1:]) + "</tr>"
