"""`report` as users call it: what `paretorch.deploy` measures, with a page."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from torch import nn

from paretorch.deploy.measure import record
from paretorch.deploy.measure.report import report as measure_report
from paretorch.report.page import write_html
from paretorch.support.inputs import Example


@dataclass(frozen=True, repr=False)
class Report(record.Report):
    """What a network costs. `print` it, or take `to_json()`, `to_html(path)`."""

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write the report as one self-contained page and return its path."""
        return write_html(path, title=self.name, comparison=[], report=self, history=[])


def report(
    model: nn.Module | str | os.PathLike[str],
    *,
    example: Example | None = None,
    accuracy: float | None = None,
    data: Iterable[Any] | None = None,
    baseline: nn.Module | None = None,
    latency: bool = True,
) -> Report:
    """Report on a module, or on an artefact by its path: bytes on disk, bits per weight, sparsity, MACs, latency, accuracy.

    A zoo network that has lost channels or was folded is compared with the whole one, with or without `baseline`.

    Args:
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
    measured = measure_report(model, example=example, accuracy=accuracy, data=data, baseline=baseline, latency=latency)
    return Report(**{field.name: getattr(measured, field.name) for field in fields(measured)})
