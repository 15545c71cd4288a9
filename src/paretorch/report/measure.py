"""`report`: measures what a network costs, and the record with a page."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paretorch.deploy.artefact import StrPath, load, open_artefact, sizes, sizes_in_file
from paretorch.deploy.codec.sizes import Sizes
from paretorch.deploy.filling import Blank
from paretorch.deploy.measure import record
from paretorch.deploy.measure.latency import Latency, measure_latency
from paretorch.deploy.measure.record import DENSE, Layer
from paretorch.deploy.measure.structure import activations_of, built_share, count_macs, macs_by_tensor, shared_of
from paretorch.deploy.plain import plain
from paretorch.deploy.runtimes.read import runtime_sizes
from paretorch.edits import Edit, KeepChannels, Share, edits_of, read_edits
from paretorch.errors import ConfigError, warn
from paretorch.report.page import write_html
from paretorch.support.checks import require_number
from paretorch.support.eval_mode import first_sentence, in_eval
from paretorch.support.inputs import LABELS, Example, ModelCall, main_output, read_example, tensors_in

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@dataclass(frozen=True, repr=False)
class Report(record.Report):
    """What a network costs. `print` it, or call `to_json()` or `to_html(path)`."""

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write the report as one self-contained page and return its path."""
        return write_html(path, title=self.name, comparison=[], report=self, history=[])


def report(
    model: nn.Module | StrPath,
    *,
    into: nn.Module | None = None,
    example: Example | None = None,
    accuracy: float | None = None,
    data: Iterable[Any] | None = None,
    baseline: nn.Module | None = None,
    latency: bool = True,
) -> Report:
    """Measure what a module, or the artefact at a path, costs: bytes on disk, bits per weight, sparsity, MACs, latency, accuracy.

    A zoo network without some of its channels, or folded, is compared with the complete one even without `baseline`. Warns if
    the weights take many more bytes than their bits say, and names the parts that take them.

    Args:
        into: The network of an artefact that names none of the zoo, as it was built; it is filled from the file, as `load` does.
        example: A batch of inputs, to count MACs and to measure latency: a tensor, a tuple of the model's arguments, or a dict
            of keyword arguments.
        accuracy: A fraction, shown as it is. Default: measured on `data`, or read from the file's summary.
        data: Batches of inputs and classes, to measure accuracy on: (inputs, classes), or dicts with "labels".
        baseline: The dense network, to compare sizes and latency with.
        latency: Whether to measure latency, in processes of their own.

    Example:
        >>> import torch, paretorch as pt
        >>> network = torch.nn.Linear(64, 10)
        >>> found = pt.report(network)
        >>> found.weights, round(found.bits)
        (640, 32)
    """
    head: Mapping[str, Any] = {}
    if example is not None:
        read_example(example)
    baseline = None if baseline is None else plain(baseline, "baseline=")
    if accuracy is not None:
        require_number("accuracy", accuracy, 0.0, 1.0, "give a fraction, such as 0.912")
    if into is not None and not isinstance(model, str | os.PathLike):
        raise ConfigError("into= is the network of an artefact, so report needs the path of the artefact")
    if isinstance(model, str | os.PathLike):
        path = Path(model)
        source, head = open_artefact(path)
        source = source if into is None else load(path, into=into)
        name = path.name
        found = sizes_in_file(path, source, head)
    elif isinstance(model, nn.Module):
        source = plain(model, "report")
        name = vars(source).get("zoo_name") or type(source).__name__
        found = sizes(source)
    else:
        raise ConfigError(f"report takes a module or the path of an artefact, not {type(model).__name__}")
    if not isinstance(source, nn.Module) and (example is not None or data is not None):
        raise ConfigError(
            "This file names no zoo network, so nothing can run the example; pass the network as it was built: into="
        )
    if data is not None and isinstance(source, nn.Module):
        accuracy = measure_accuracy(source, data)
    summary = head.get("summary")
    if accuracy is None and isinstance(summary, Mapping):
        kept = summary.get("accuracy")
        accuracy = float(kept) if isinstance(kept, int | float) and 0 <= kept <= 1 else None
    buffers = _buffers(source)
    own = edits_of(source) if isinstance(source, nn.Module) else []
    edits = own or read_edits(head.get("edits", []))
    built = built_share(edits)
    layers, timed = _layers(found, buffers, built, {}, {}), list[Latency]()
    shared = shared_of(edits)
    if example is not None and isinstance(source, nn.Module):
        counted = count_macs(source, example)
        layers = _layers(found, buffers, built, *macs_by_tensor(source, counted, shared))
        if latency:
            timed = measure_latency({name: source} | ({} if baseline is None else {DENSE: baseline}), example)
    quantized = activations_of(source) if isinstance(source, nn.Module) else ()
    whole = baseline if baseline is not None else _whole(source, edits)
    before = None if whole is None else sum(tensor.nbytes for tensor in whole.state_dict().values())
    runtimes = runtime_sizes(source) if isinstance(source, nn.Module) else {}
    made = Report(name, found, layers, accuracy, before, tuple(timed), quantized, shared, buffers, runtimes)
    if made.excess is not None:
        warn(made.excess)
    return made


def _whole(source: nn.Module | Mapping[str, Tensor], edits: Iterable[Edit]) -> nn.Module | None:
    """Return the complete zoo network, without values, if this one lost channels or was folded; else None."""
    from paretorch import zoo

    own = vars(source) if isinstance(source, nn.Module) else {}
    name, options = own.get("zoo_name"), own.get("zoo_options") or {}
    if name is None or not any(isinstance(edit, KeepChannels | Share) for edit in edits):
        return None
    with torch.device("meta"), Blank():
        return zoo.build(name, **options)


def _buffers(source: nn.Module | Mapping[str, Tensor]) -> frozenset[str]:
    if isinstance(source, nn.Module):
        return frozenset(source.state_dict()) - {name for name, _ in source.named_parameters(remove_duplicate=False)}
    return frozenset(name for name in source if name.rpartition(".")[2] in _STATISTICS)


def _layers(
    found: Sizes,
    buffers: frozenset[str],
    built: Mapping[str, Fraction],
    macs: Mapping[str, int],
    kept: Mapping[str, int],
) -> tuple[Layer, ...]:
    return tuple(
        Layer(key, size, macs.get(key), kept.get(key), round(size.numel * (built.get(key.rpartition(".")[0], 1) - 1)))
        for key, size in found.tensors.items()
        if len(size.shape) > 1 and key not in buffers
    )


def measure_accuracy(model: nn.Module, data: Iterable[Any]) -> float:
    """Return the share of inputs whose class has the largest output, in eval mode.

    Args:
        data: Batches of inputs and their classes: (inputs, classes), with inputs as `example=` takes them; (first, second,
            classes), for a model of several arguments; or a dict of keyword arguments with "labels" among them.
    """
    parameter = next(model.parameters(), None)
    right, count = 0, 0
    try:
        with in_eval(model):
            for batch in data:
                call, classes = _split(batch)
                logits = main_output(call.to(None if parameter is None else parameter.device)(model))
                chosen = logits.argmax(1).cpu()
                if chosen.shape != classes.shape:
                    raise ValueError(f"classes of shape {tuple(classes.shape)} for outputs of {tuple(logits.shape)}")
                right += int((chosen == classes.cpu()).sum())
                count += classes.numel()
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise ConfigError(f"data must give batches of inputs and their classes: {first_sentence(error)}") from error
    if not count:
        raise ConfigError("data gives no batches: nothing to measure accuracy on")
    return right / count


def _split(batch: Any) -> tuple[ModelCall, Tensor]:
    """Return the call of a batch, and its classes."""
    inputs: Any
    if isinstance(batch, Mapping):
        name = next((name for name in LABELS if name in batch), None)
        if name is None:
            raise TypeError(f"a dict has no {LABELS[0]!r}")
        inputs, classes = {key: value for key, value in batch.items() if key != name}, batch[name]
    else:
        *parts, classes = batch
        inputs = parts[0] if len(parts) == 1 else parts
    if not isinstance(classes, Tensor) or not tensors_in(inputs):
        raise TypeError(f"not {type(inputs).__name__} and {type(classes).__name__} but tensors")
    return read_example(inputs, dims=0), classes
