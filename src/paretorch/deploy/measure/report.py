"""The report on a network: bytes on disk by kind and layer, bits, sparsity, MACs, latency, accuracy."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paretorch.deploy.artefact import StrPath, open_artefact, sizes, sizes_in_file
from paretorch.deploy.codec.filling import Blank
from paretorch.deploy.measure.accuracy import measure_accuracy
from paretorch.deploy.measure.latency import Latency, measure_latency
from paretorch.deploy.measure.macs import count_macs
from paretorch.deploy.measure.sizes import KINDS, Sizes, TensorSize
from paretorch.deploy.plain import plain
from paretorch.deploy.structure import MACS, Activation, Shared, activations_of, macs_by_tensor, shared_of
from paretorch.edits import Edit, KeepChannels, Share, edits_of, read_edits
from paretorch.errors import ConfigError
from paretorch.report import write_html  # here, not in to_html: a later import would put the room over pt.report
from paretorch.support.checks import require_number

_DENSE = "dense"  # the name of the baseline among latencies
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True)
class Layer:
    """One weight (a tensor of two or more dimensions) in the file."""

    name: str
    size: TensorSize
    macs: int | None
    macs_kept: int | None = None

    @property
    def sparsity(self) -> float:
        return self.size.zeros / self.size.numel if self.size.numel else 0.0

    @property
    def bits_on_disk(self) -> float:
        """Bits per weight with masks, maps and tables."""
        return 8 * self.size.total / self.size.numel if self.size.numel else 0.0


@dataclass(frozen=True, repr=False)
class Report:
    """What a network costs. `print` it, or take `to_json()`, `to_html(path)`.

    Weights are the parameters of two or more dimensions. A weight counts its bits on the grid of chapter 5, whose scale is 1
    unless an edit names another, and a zero there 0; one of n other values (LSQ, DoReFa …) ⌈log₂ n⌉; any other its dtype's,
    or 0 if it is zero.
    `bits` leaves the map of precisions and the masks out, as papers do; `bits_on_disk` has them. `buffers`: stored
    tensors that are no parameters (of a file without a network of the zoo, norm statistics). `macs`: see paretorch.deploy.measure.macs; of layers that are mixed from shared
    tensors each tensor has its part. `latency`: by runtime, with spread; of the entries, `dense` is the baseline.
    `dense`: bytes of the plain tensors of the network that this was made from, `baseline` where that is known, else of this one.
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

    @property
    def dense(self) -> int:
        return self.sizes.dense if self.baseline is None else self.baseline

    @property
    def parameters(self) -> int:
        return sum(size.numel for name, size in self.sizes.tensors.items() if name not in self.buffers)

    @property
    def weights(self) -> int:
        return sum(layer.size.numel for layer in self.layers)

    @property
    def sparsity(self) -> float:
        return sum(layer.size.zeros for layer in self.layers) / max(self.weights, 1)

    @property
    def bits(self) -> float:
        return sum(layer.size.bits * layer.size.numel for layer in self.layers) / max(self.weights, 1)

    @property
    def bits_on_disk(self) -> float:
        return 8 * sum(layer.size.total for layer in self.layers) / max(self.weights, 1)

    @property
    def macs(self) -> int | None:
        counted = [layer.macs for layer in self.layers if layer.macs is not None]
        return sum(counted) if counted else None

    @property
    def macs_kept(self) -> int | None:
        """MACs whose weight is not zero."""
        return None if self.macs is None else sum(layer.macs_kept or 0 for layer in self.layers)

    @property
    def speedups(self) -> dict[str, float]:
        """Runtime -> how many times as fast as the dense baseline under the same runtime, measured in one run."""
        times = {(entry.name, entry.runtime): entry.median_ms for entry in self.latency}
        pairs = {runtime: (times.get((_DENSE, runtime)), times.get((self.name, runtime))) for _, runtime in times}
        return {runtime: dense / own for runtime, (dense, own) in pairs.items() if dense and own}

    @property
    def precisions(self) -> dict[int, int]:
        """Bits p -> weights, over all layers whose values are on a grid, or few."""
        found: dict[int, int] = {}
        for layer in self.layers:
            for p, count in layer.size.precisions.items():
                found[p] = found.get(p, 0) + count
        return dict(sorted(found.items()))

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, for logging."""
        layers = [
            {
                "name": layer.name,
                "shape": list(layer.size.shape),
                "coding": layer.size.coding,
                "weights": layer.size.numel,
                "sparsity": layer.sparsity,
                "bits": layer.size.bits,
                "bits_on_disk": layer.bits_on_disk,
                "bytes": {"total": layer.size.total, **{kind: getattr(layer.size, kind) for kind in KINDS}},
                "macs": layer.macs,
            }
            for layer in self.layers
        ]
        return {
            "name": self.name,
            "bytes": {"total": self.sizes.total, **{kind: getattr(self.sizes, kind) for kind in KINDS}},
            "dense_bytes": self.sizes.dense,
            "baseline_bytes": self.baseline,
            "parameters": self.parameters,
            "weights": self.weights,
            "sparsity": self.sparsity,
            "bits": self.bits,
            "bits_on_disk": self.bits_on_disk,
            "precisions": {str(p): count for p, count in self.precisions.items()},
            "macs": self.macs,
            "macs_kept": self.macs_kept,
            "macs_convention": MACS,
            "accuracy": self.accuracy,
            "latency": [asdict(entry) for entry in self.latency],
            "speedups": self.speedups,
            "activations": [asdict(one) for one in self.activations],
            "shared": [{**asdict(one), "runs": list(one.runs)} for one in self.shared],
            "layers": layers,
        }

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), indent=2)

    def to_html(self, path: StrPath) -> Path:
        """Write the report as one self-contained page."""
        return write_html(path, title=self.name, comparison=[], report=self, history=[])

    def __str__(self) -> str:
        from paretorch.deploy.measure.text import render

        return render(self)

    def __repr__(self) -> str:
        return f"Report({self.name!r}: {self.sizes.total:,} bytes, {self.bits:.2f} bits per weight, {self.sparsity:.1%} zero)"


def report(
    model: nn.Module | StrPath,
    *,
    example: Tensor | None = None,
    accuracy: float | None = None,
    data: Iterable[tuple[Tensor, Tensor]] | None = None,
    baseline: nn.Module | None = None,
    latency: bool = True,
) -> Report:
    """Report on a module, or on an artefact by its path.

    example: a batch of inputs; with it MACs are counted and, unless `latency=False`, latency is measured in processes
    of their own, for `baseline` (the dense network) too. Of a zoo network that has lost channels or was folded, sizes are compared
    with the whole one, `baseline` or not. accuracy: a fraction, shown as it is; or data: batches of inputs
    and classes, on which it is measured; else it is read from the summary of a file that has one.
    """
    head: Mapping[str, Any] = {}
    if example is not None and not (isinstance(example, Tensor) and example.dim() and len(example)):
        raise ConfigError("example must be a tensor whose first dimension is the batch, with at least one row")
    baseline = None if baseline is None else plain(baseline, "baseline=")
    if accuracy is not None:
        require_number("accuracy", accuracy, 0.0, 1.0, "give a fraction, such as 0.912")
    if isinstance(model, str | os.PathLike):
        path = Path(model)
        source, head = open_artefact(path)
        name = path.name
        found = sizes_in_file(path, source, head)
    elif isinstance(model, nn.Module):
        source = plain(model, "report")
        name = getattr(source, "zoo_name", "") or type(source).__name__
        found = sizes(source)
    else:
        raise ConfigError(f"report takes a module or the path of an artefact, not {type(model).__name__}")
    if not isinstance(source, nn.Module) and (example is not None or data is not None):
        raise ConfigError("this file names no zoo network, so nothing can run the example; load it into a module")
    if data is not None and isinstance(source, nn.Module):
        accuracy = measure_accuracy(source, data)
    summary = head.get("summary")
    if accuracy is None and isinstance(summary, Mapping):
        kept = summary.get("accuracy")
        accuracy = float(kept) if isinstance(kept, int | float) and 0 <= kept <= 1 else None
    buffers = _buffers(source)
    layers, timed = _layers(found, buffers, {}, {}), list[Latency]()
    own = edits_of(source) if isinstance(source, nn.Module) else []
    edits = own or read_edits(head.get("edits", []))
    shared = shared_of(edits)
    if example is not None and isinstance(source, nn.Module):
        counted = count_macs(source, example)
        layers = _layers(found, buffers, *macs_by_tensor(source, counted, shared))
        if latency:
            timed = measure_latency({name: source} | ({} if baseline is None else {_DENSE: baseline}), example)
    quantized = activations_of(source) if isinstance(source, nn.Module) else ()
    whole = baseline if baseline is not None else _whole(source, edits)
    before = None if whole is None else sum(tensor.nbytes for tensor in whole.state_dict().values())
    return Report(name, found, layers, accuracy, before, tuple(timed), quantized, shared, buffers)


def _whole(source: nn.Module | Mapping[str, Tensor], edits: Iterable[Edit]) -> nn.Module | None:
    """The zoo network, without values, that lost channels or was folded; None where it has all, or is of no zoo."""
    from paretorch import zoo

    name, options = getattr(source, "zoo_name", None), getattr(source, "zoo_options", None) or {}
    if name is None or not any(isinstance(edit, KeepChannels | Share) for edit in edits):
        return None
    with torch.device("meta"), Blank():
        return zoo.build(name, **options)


def _buffers(source: nn.Module | Mapping[str, Tensor]) -> frozenset[str]:
    if isinstance(source, nn.Module):
        return frozenset(source.state_dict()) - {name for name, _ in source.named_parameters(remove_duplicate=False)}
    return frozenset(name for name in source if name.rpartition(".")[2] in _STATISTICS)


def _layers(
    found: Sizes, buffers: frozenset[str], macs: Mapping[str, int], kept: Mapping[str, int]
) -> tuple[Layer, ...]:
    return tuple(
        Layer(key, size, macs.get(key), kept.get(key))
        for key, size in found.tensors.items()
        if len(size.shape) > 1 and key not in buffers
    )
