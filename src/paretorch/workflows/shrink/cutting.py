"""The first part of a shrink to a latency: channels go, and what is left is trained to answer as the dense network."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch import nn

from paretorch.core.compress import compress
from paretorch.deploy import encoded_size
from paretorch.deploy.measure.stopwatch import NetworkStopwatch, stopwatch_for
from paretorch.deploy.plain import copied
from paretorch.edits import edits_of
from paretorch.errors import DivergenceError
from paretorch.methods.sparsity.continuous import ContinuousSparsification
from paretorch.support.text import dense_bytes
from paretorch.workflows.shrink.folder import ShrinkFolder, ShrinkProgress
from paretorch.workflows.shrink.objective import Batches, Objective, estimate_norms

_SEARCH = 0.6  # of the steps, after which it is decided which channels go
_RATE, _WARM_UP = 5e-4, 0.05  # of AdamW, and for how many of the steps it rises
_LEAST_RATE = 0.02  # of the rate, at the end


def cut_network(
    dense: nn.Module,
    data: Batches,
    store: ShrinkFolder,
    latency: str,
    runtime: str | None,
    steps: int,
    shown: ShrinkProgress,
) -> tuple[nn.Module, dict[str, Any]]:
    """Return the network with so many channels that one row of a batch takes the latency, and the record of that.

    The dense network stays as it is. What the folder has already is not cut again.

    Args:
        latency, runtime: As for `paretorch.compress`.
        steps: Of training, at least 1.
    """
    start = time.perf_counter()
    found: dict[str, float] = {}
    small = store.load_cut(copied(dense, "shrink"))
    if small is None:
        objective = Objective(dense, data.calibration[0])
        objective.check([*data.calibration, *data.held_out])
        shown.show("measuring", 0, 1)
        timed = stopwatch_for(dense, data.calibration[0].first(), runtime, latency)
        small, found = _cut_channels(dense, data, objective, timed, steps, shown)
        estimate_norms(small, objective, data)
        store.save_cut(small)
        found["cut_distance"] = objective.distance(small, data.held_out)
    return small.requires_grad_(False).eval(), {
        "latency": latency,
        **found,
        "bytes": encoded_size(small.state_dict(), small, edits_of(small)),
        "dense_bytes": dense_bytes(dense),
        "steps": steps,
        "seconds": {"channels": round(time.perf_counter() - start, 1)},
    }


def _cut_channels(
    dense: nn.Module,
    data: Batches,
    objective: Objective,
    timed: tuple[float, NetworkStopwatch],
    steps: int,
    shown: ShrinkProgress,
) -> tuple[nn.Module, dict[str, float]]:
    """Return the network that is left, and the milliseconds of it and the dense one."""
    milliseconds, stopwatch = timed
    student = copied(dense, "shrink").requires_grad_(True).train()
    search = max(1, round(_SEARCH * steps))
    method = ContinuousSparsification(group="channel", start="saliency")
    example = data.calibration[0].first()
    plan = compress(student, method, steps=search, example=example, latency=milliseconds, stopwatch=stopwatch)
    optimizer = torch.optim.AdamW(plan.param_groups(), lr=_RATE, weight_decay=0.0)
    for number, call in enumerate(data.train(steps)):
        for group in optimizer.param_groups:
            group["lr"] = _RATE * _factor(number, steps)
        loss = objective.loss(call, student)
        if not bool(loss.detach().isfinite()):
            raise DivergenceError(f"The loss is {float(loss)} after {number} steps: the batch may hold extreme values")
        loss.backward()
        optimizer.step()
        if number < search:
            plan.step()
        optimizer.zero_grad()
        if number + 1 == search:
            plan.harden(optimizer)
        shown.show("channels", number + 1, steps)
    edits = plan.edits()
    small = plan.finalize()
    times = {"milliseconds": stopwatch.network(edits), "dense_milliseconds": stopwatch.network(())}
    return small, {name: round(value, 4) for name, value in times.items()}


def _factor(step: int, steps: int) -> float:
    """Return the factor of the rate: a short warm-up, then half a cosine."""
    rise = min(1.0, (step + 1) / max(1.0, _WARM_UP * steps))
    return rise * (_LEAST_RATE + (1.0 - _LEAST_RATE) * 0.5 * (1.0 + math.cos(math.pi * step / steps)))
