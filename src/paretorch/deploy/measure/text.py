"""The report as plain text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paretorch.deploy.measure.sizes import KINDS
from paretorch.deploy.structure import MACS
from paretorch.edits.loops import loops_in_words

if TYPE_CHECKING:
    from paretorch.deploy.measure.report import Report
    from paretorch.deploy.structure import Shared


def human(count: float, unit: str = "B") -> str:
    """1234567 -> '1.23 MB'; thousands are 1000."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(count) >= factor:
            return (
                f"{count / factor:.3g} {prefix}{unit}"
                if count / factor < 999.5
                else f"{count / factor:.0f} {prefix}{unit}"
            )
    return f"{count:.0f} {unit}".strip()


def printable(name: str) -> str:
    """A name out of a file as a terminal may show it: no control characters, no half characters."""
    return name if name.isprintable() else ascii(name)


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with aligned columns, the first to the left and the others to the right; the first row is the heading."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return [lines[0], "─" * max(len(line) for line in lines), *lines[1:]]


def _times(dense: float, total: float) -> str:
    """How much smaller; a network of a few weights is larger in a file, with names and a checksum."""
    return f"{dense / total:.1f} x smaller" if total <= dense else f"{human(total - dense)} larger"


def facts(report: Report) -> list[tuple[str, str]]:
    """The headline numbers, as label and text."""
    size = report.sizes
    found = [
        (
            "on disk",
            f"{human(size.total)} ({size.total:,} bytes), {_times(report.dense, size.total)} than {human(report.dense)} dense",
        ),
        ("parameters", f"{report.parameters:,}, of which {report.weights:,} weights in {len(report.layers)} layers"),
        ("sparsity", f"{report.sparsity:.2%} of the weights are zero"),
        ("bits per weight", f"{report.bits:.2f} without masks and map, {report.bits_on_disk:.2f} on disk"),
    ]
    if report.dense != size.dense:
        found.insert(1, ("plain tensors", f"{human(size.dense)} for what is left"))
    if report.accuracy is not None:
        found.insert(0, ("accuracy", f"{report.accuracy:.2%}"))
    if report.macs is not None and report.macs_kept is not None:
        kept = human(report.macs_kept, "")
        found.append(("MACs", f"{human(report.macs, '')} per example, {kept} with a weight that is not zero"))
        if not report.latency:  # multiply-adds alone say little about time
            found.append(("latency", "not measured: pare report FILE --latency, or latency=True"))
    for entry in report.latency:
        spread = f"{entry.low_ms:.3g} to {entry.high_ms:.3g} over {entry.rounds} rounds"
        threads = f"{entry.threads} thread{'s' if entry.threads > 1 else ''}"
        where = f"batch {entry.batch}, {threads}" + ("" if entry.isolated else ", not isolated")
        found.append((f"{entry.name}, {entry.runtime}", f"{entry.median_ms:.3g} ms ({spread}; {where})"))
    if report.speedups:
        told = ", ".join(f"{ratio:.2f} x under {runtime}" for runtime, ratio in report.speedups.items())
        found.append(("against dense", f"{told} (above 1 is faster)"))
    if report.activations:
        bits = [one.bits for one in report.activations]
        told = f"{sum(bits) / len(bits):.2f} bits on average, {min(bits):.3g} to {max(bits):.3g}"
        found.append(("activations", f"{len(bits)} are quantized: {told}"))
    for group in report.shared:
        found.append(("shared", f"{len(group.layers)} layers are stored as {len(group.stored)}: {loops(group)}"))
    return found


def loops(group: Shared) -> str:
    """How stored layers run in the place of all layers, in words."""
    return loops_in_words(group.runs) if group.runs else "every layer is a mixture of these"


def render(report: Report) -> str:
    """Headline numbers, bytes by kind, and a line per layer."""
    size = report.sizes
    title = printable(report.name)
    lines = [title, "═" * max(len(title), 24)]
    found = facts(report)
    width = max(len(label) for label, _ in found)
    lines += [f"{label.ljust(width)}  {text}" for label, text in found]
    rows = [["layer", "shape", "stored", "zero", "bits", "on disk", *KINDS, "bytes"]]
    for layer in report.layers:
        tensor = layer.size
        cells = [f"{getattr(tensor, kind):,.0f}" for kind in KINDS]
        shape = "x".join(map(str, tensor.shape))
        bits = [f"{tensor.bits:.2f}", f"{layer.bits_on_disk:.2f}"]
        rows.append(
            [
                printable(layer.name),
                shape,
                tensor.coding,
                f"{layer.sparsity:.1%}",
                *bits,
                *cells,
                f"{tensor.total:,.0f}",
            ]
        )
    shown = {layer.name for layer in report.layers}
    others = [tensor for name, tensor in size.tensors.items() if name not in shown]
    sums = [sum(getattr(tensor, kind) for tensor in others) for kind in KINDS]
    rows.append(
        [f"{len(others)} other tensors", "", "", "", "", "", *(f"{value:,.0f}" for value in sums), f"{sum(sums):,.0f}"]
    )
    head = size.total - sum(tensor.total for tensor in size.tensors.values())
    rows.append(["names and header", "", "", "", "", "", "", "", "", f"{head:,.0f}", f"{head:,.0f}"])
    total = [f"{getattr(size, kind):,.0f}" for kind in KINDS]
    rows.append(["file", "", "", f"{report.sparsity:.1%}", f"{report.bits:.2f}", "", *total, f"{size.total:,}"])
    quantized = [["activation", "bits", "from", "to", "groups by bits"]]
    for one in report.activations:
        groups = ", ".join(f"{p}: {count}" for p, count in sorted(one.groups.items()))
        quantized.append([printable(one.name), f"{one.bits:.2f}", f"{one.low:.3g}", f"{one.high:.3g}", groups])
    more = ["", *table(quantized)] if report.activations else []
    foot = ["", f"{MACS}."] if report.macs is not None else []
    return "\n".join([*lines, "", *table(rows), *more, *foot])
