"""What a network costs, as a record and as text: bytes on disk by kind and layer, bits, sparsity, MACs, latency, accuracy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from paretorch.deploy.codec.sizes import KINDS, Sizes, TensorSize
from paretorch.deploy.measure.latency import Latency
from paretorch.deploy.measure.structure import MACS, Activation, Shared
from paretorch.support.text import human, loops_in_words, printable, table

DENSE = "dense"  # the name of the baseline among latencies
_MIN_EXCESS = 0.2  # of the bytes that the bits say
_MIN_EXCESS_BYTES = 1000
_FEW_BITS = 8
_MAX_REASONS = 3


@dataclass(frozen=True)
class Layer:
    """One weight (a tensor of two or more dimensions) in the file."""

    name: str
    size: TensorSize
    macs: int | None
    macs_kept: int | None = None
    gone: int = 0
    """Weights in channels that were removed, which the network had as it was built."""

    @property
    def sparsity(self) -> float:
        """The share of zeros in what is left."""
        return self.size.zeros / self.size.numel if self.size.numel else 0.0

    @property
    def bits_on_disk(self) -> float:
        """Bits per weight with masks, maps and tables."""
        return 8 * self.size.total / self.size.numel if self.size.numel else 0.0


@dataclass(frozen=True, repr=False)
class Report:
    """What a network costs. `print` it, or call `to_json()`.

    Weights are the parameters of two or more dimensions. Sparsity and bits are over all weights that the network had as it was
    built, as those of a plan are: a weight whose channel was removed is zero and has 0 bits. A weight on the grid of chapter 5, whose scale is 1 unless an edit
    names another, counts its bits there, and a zero 0; one of n other values (LSQ, DoReFa …) counts ⌈log₂ n⌉; any other
    counts the bits of its dtype, or 0 if it is zero. `bits` leaves out the map of precisions and the masks, as papers do;
    `bits_on_disk` includes them.

    Args:
        sizes: Bytes of the file, by kind and by tensor.
        layers: One entry per weight. If layers are mixed from shared tensors, each tensor has its part of the MACs.
        accuracy: A fraction.
        baseline: Bytes of the plain tensors of the network that this one was made from, if known.
        latency: By network and runtime, with spread. Entries named "dense" are the baseline's.
        activations: The quantized activations.
        shared: The groups of layers that share tensors.
        runtimes: By runtime, bytes of the tensors as `paretorch.export` stores them, without the graph and names. Only runtimes that have codes for
            some of the weights.
        buffers: Names of stored tensors that are not parameters (for a file without a zoo network: norm statistics).
    """

    name: str
    sizes: Sizes
    layers: tuple[Layer, ...]
    accuracy: float | None = None
    baseline: int | None = None
    latency: tuple[Latency, ...] = ()
    activations: tuple[Activation, ...] = ()
    shared: tuple[Shared, ...] = ()
    buffers: frozenset[str] = frozenset()
    runtimes: Mapping[str, int] = field(default_factory=dict)

    @property
    def dense(self) -> int:
        """Bytes of the plain tensors to compare with: the baseline's, or this network's own."""
        return self.sizes.dense if self.baseline is None else self.baseline

    @property
    def parameters(self) -> int:
        return sum(size.numel for name, size in self.sizes.tensors.items() if name not in self.buffers)

    @property
    def weights(self) -> int:
        return sum(layer.size.numel for layer in self.layers)

    @property
    def gone(self) -> int:
        """Weights in channels that were removed."""
        return sum(layer.gone for layer in self.layers)

    @property
    def built(self) -> int:
        """Weights as the network was built: what sparsity and bits are over."""
        return self.weights + self.gone

    @property
    def sparsity(self) -> float:
        return (sum(layer.size.zeros for layer in self.layers) + self.gone) / max(self.built, 1)

    @property
    def bits(self) -> float:
        return sum(layer.size.bits * layer.size.numel for layer in self.layers) / max(self.built, 1)

    @property
    def bits_on_disk(self) -> float:
        return 8 * sum(layer.size.total for layer in self.layers) / max(self.built, 1)

    @property
    def excess(self) -> str | None:
        """A sentence: by how much the weights take more bytes than `bits` says, and why; None if they do not."""
        return excess_in_words(self.layers)

    @property
    def macs(self) -> int | None:
        counted = [layer.macs for layer in self.layers if layer.macs is not None]
        return sum(counted) if counted else None

    @property
    def macs_kept(self) -> int | None:
        """MACs whose weight is not zero."""
        return None if self.macs is None else sum(layer.macs_kept or 0 for layer in self.layers)

    @property
    def timed_against_dense(self) -> dict[str, tuple[Latency, Latency]]:
        """By runtime, the latency of the dense baseline and of this network, measured in one run."""
        timed = {(entry.name, entry.runtime): entry for entry in self.latency}
        runtimes = dict.fromkeys(runtime for _, runtime in timed)
        pairs = {runtime: (timed.get((DENSE, runtime)), timed.get((self.name, runtime))) for runtime in runtimes}
        return {runtime: (dense, own) for runtime, (dense, own) in pairs.items() if dense and own}

    @property
    def speedups(self) -> dict[str, float]:
        """By runtime, how many times as fast as the dense baseline; no entry if the measured ranges overlap.

        If ranges overlap, a ratio of their medians would be noise.
        """
        pairs = self.timed_against_dense.items()
        return {runtime: dense.median_ms / own.median_ms for runtime, (dense, own) in pairs if not dense.overlaps(own)}

    @property
    def precisions(self) -> dict[int, int]:
        """{bits p: weights} over all layers whose values are on a grid, or few."""
        found: dict[int, int] = {}
        for layer in self.layers:
            for p, count in layer.size.precisions.items():
                found[p] = found.get(p, 0) + count
        return dict(sorted(found.items()))

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers and strings, for logging."""
        layers = [
            {
                "name": layer.name,
                "shape": list(layer.size.shape),
                "coding": layer.size.coding,
                "weights": layer.size.numel,
                "sparsity": layer.sparsity,
                "bits": layer.size.bits,
                "bits_on_disk": layer.bits_on_disk,
                "bytes": {"total": layer.size.total, **layer.size.by_kind},
                "macs": layer.macs,
            }
            for layer in self.layers
        ]
        return {
            "name": self.name,
            "bytes": {"total": self.sizes.total, **self.sizes.by_kind},
            "dense_bytes": self.sizes.dense,
            "baseline_bytes": self.baseline,
            "parameters": self.parameters,
            "weights": self.weights,
            "weights_built": self.built,
            "sparsity": self.sparsity,
            "bits": self.bits,
            "bits_on_disk": self.bits_on_disk,
            "excess": self.excess,
            "precisions": {str(p): count for p, count in self.precisions.items()},
            "macs": self.macs,
            "macs_kept": self.macs_kept,
            "macs_convention": MACS,
            "accuracy": self.accuracy,
            "latency": [asdict(entry) for entry in self.latency],
            "speedups": self.speedups,
            "runtimes": dict(self.runtimes),
            "activations": [asdict(one) for one in self.activations],
            "shared": [{**asdict(one), "runs": list(one.runs)} for one in self.shared],
            "layers": layers,
        }

    def to_json(self) -> str:
        """Return `as_dict()` as JSON."""
        return json.dumps(self.as_dict(), indent=2)

    def __str__(self) -> str:
        return _render(self)

    def __repr__(self) -> str:
        return f"Report({self.name!r}: {self.sizes.total:,} bytes, {self.bits:.2f} bits per weight, {self.sparsity:.1%} zero)"


def excess_in_words(layers: Sequence[Layer]) -> str | None:
    """Return by how much the weights take more bytes than their bits say, and which parts; None if they do not.

    Bits leave out the map of precisions, the steps of groups, and values on no grid. (Masks are listed beside the sparsity.)
    Weights on no grid count as larger if most of the others have few bits.
    """
    coded = [layer for layer in layers if layer.size.precisions]
    few = sum(layer.size.numel for layer in coded if layer.size.bits <= _FEW_BITS)
    count = sum(layer.size.numel for layer in layers)
    floats = [layer for layer in layers if not layer.size.precisions] if 2 * few >= count else []
    mean = sum(layer.size.bits * layer.size.numel for layer in coded) / max(sum(layer.size.numel for layer in coded), 1)
    said = sum(layer.size.bits * layer.size.numel for layer in coded) / 8
    said += sum(layer.size.numel for layer in floats) * mean / 8
    taken = sum(layer.size.total - layer.size.masks for layer in (*coded, *floats))
    if taken - said < max(_MIN_EXCESS_BYTES, _MIN_EXCESS * said):
        return None
    reasons = sorted((reason for layer in (*coded, *floats) for reason in _reasons(layer, mean)), reverse=True)
    named = [text for size, text in reasons[:_MAX_REASONS] if size > 0.05 * (taken - said)]
    return (
        f"The weights take {human(taken)} without masks, {taken / max(said, 1.0):.2f} times the {human(said)} that their "
        f"bits say: {'; '.join(named) if named else 'tables of frequencies'}"
    )


def _reasons(layer: Layer, mean: float) -> list[tuple[float, str]]:
    """Return bytes that are not in the bits, with a description of what they are for."""
    name, size = printable(layer.name), layer.size
    if not size.precisions:
        more = size.total - size.masks - size.numel * mean / 8
        return [(more, f"{name} lies on no grid and takes {human(size.total)}: quantize or prune it")]
    return [
        (size.maps, f"the map of precisions of {name} takes {human(size.maps)}: let more weights share a decision"),
        (size.steps, f"the steps of {name} take {human(size.steps)}: larger groups, or steps in fp16, take less"),
        (size.off, f"values of {name} off their grid take {human(size.off)}"),
        (size.rest, f"the tables of {name} take {human(size.rest)}"),
    ]


def _times(dense: float, total: float) -> str:
    """Return how much smaller the file is. (That of a tiny network is larger, because of names and a checksum.)"""
    return f"{dense / total:.1f} x smaller" if total <= dense else f"{human(total - dense)} larger"


def counted_in_words(report: Report) -> str:
    """Return what sparsity is a share of, and what counts."""
    if not report.gone:
        return f"all {report.weights:,} weights are zero"
    return f"all {report.built:,} weights are zero, or gone with their channels ({report.gone:,})"


def _facts(report: Report) -> list[tuple[str, str]]:
    """Return the headline numbers, as label and text."""
    size = report.sizes
    found = [
        (
            "on disk",
            f"{human(size.total)} ({size.total:,} bytes), {_times(report.dense, size.total)} than {human(report.dense)} dense",
        ),
        ("parameters", f"{report.parameters:,}, of which {report.weights:,} weights in {len(report.layers)} layers"),
        ("sparsity", f"{report.sparsity:.2%} of {counted_in_words(report)}"),
        ("bits per weight", f"{report.bits:.2f} without masks and map, {report.bits_on_disk:.2f} on disk"),
    ]
    if report.excess is not None:
        found.append(("larger", report.excess))
    if report.dense != size.dense:
        found.insert(1, ("plain tensors", f"{human(size.dense)} for what is left"))
    for runtime, count in report.runtimes.items():
        found.append((runtime, f"{human(count)} of tensors ({count:,} bytes)"))
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
        ratios = ", ".join(f"{ratio:.2f} x under {runtime}" for runtime, ratio in report.speedups.items())
        found.append(("against dense", f"{ratios} (above 1 is faster)"))
    if equal := [runtime for runtime in report.timed_against_dense if runtime not in report.speedups]:
        found.append(("against dense", f"no difference under {' and '.join(equal)}: the ranges overlap"))
    if report.activations:
        bits = [one.bits for one in report.activations]
        average = f"{sum(bits) / len(bits):.2f} bits on average, {min(bits):.3g} to {max(bits):.3g}"
        found.append(("activations", f"{len(bits)} are quantized: {average}"))
    for group in report.shared:
        found.append(("shared", f"{len(group.layers)} layers are stored as {len(group.stored)}: {loops_of(group)}"))
    return found


def loops_of(group: Shared) -> str:
    """Describe how the stored layers run in place of all layers."""
    return loops_in_words(group.runs) if group.runs else "every layer is a mixture of these"


def _render(report: Report) -> str:
    """Return the headline numbers, bytes by kind, and a line per layer."""
    size = report.sizes
    title = printable(report.name)
    lines = [title, "═" * max(len(title), 24)]
    found = _facts(report)
    width = max(len(label) for label, _ in found)
    lines += [f"{label.ljust(width)}  {text}" for label, text in found]
    rows = [["layer", "shape", "stored", "zero", "bits", "on disk", *KINDS, "bytes"]]
    for layer in report.layers:
        tensor = layer.size
        shape, bits = "x".join(map(str, tensor.shape)), [f"{tensor.bits:.2f}", f"{layer.bits_on_disk:.2f}"]
        sizes = [f"{value:,.0f}" for value in (*tensor.by_kind.values(), tensor.total)]
        rows.append([printable(layer.name), shape, tensor.coding, f"{layer.sparsity:.1%}", *bits, *sizes])
    shown = {layer.name for layer in report.layers}
    others = [tensor for name, tensor in size.tensors.items() if name not in shown]
    sums = [sum(tensor.by_kind[kind] for tensor in others) for kind in KINDS]
    rows.append([f"{len(others)} other tensors", *[""] * 5, *(f"{value:,.0f}" for value in (*sums, sum(sums)))])
    head = size.total - sum(tensor.total for tensor in size.tensors.values())
    rows.append(["names and header", *[""] * 8, f"{head:,.0f}", f"{head:,.0f}"])
    total = [f"{value:,.0f}" for value in size.by_kind.values()]
    rows.append(["file", "", "", f"{report.sparsity:.1%}", f"{report.bits:.2f}", "", *total, f"{size.total:,}"])
    quantized = [["activation", "bits", "from", "to", "groups by bits"]]
    for one in report.activations:
        groups = ", ".join(f"{p}: {count}" for p, count in sorted(one.groups.items()))
        quantized.append([printable(one.name), f"{one.bits:.2f}", f"{one.low:.3g}", f"{one.high:.3g}", groups])
    more = ["", *table(quantized)] if report.activations else []
    foot = ["", f"{MACS}."] if report.macs is not None else []
    return "\n".join([*lines, "", *table(rows), *more, *foot])
