"""The end of training: codes that fit into the budget, norms estimated anew, vectors as the file holds them."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from paretorch.core.finish.recalibrate import recalibrate_norms
from paretorch.deploy import encoded_size
from paretorch.training.norms import compact_state, make_compact
from paretorch.workflows.shrink.batches import Batches, as_given
from paretorch.workflows.shrink.coded import CodedWeights
from paretorch.workflows.shrink.objective import Objective

_FITS = 0.97  # of the budget: a smaller file is tried again with a smaller μ
_AIM = 0.995
_ROUNDS = 6


def has_short_vectors(model: nn.Module) -> bool:
    """Whether norms and biases are bfloat16 values, as post-training leaves them if that pays."""
    vectors = [t for t in model.state_dict().values() if t.dtype == torch.float32 and t.dim() == 1]
    return all(bool((t.bfloat16().float() == t).all()) for t in vectors)


@torch.no_grad()
def size_now(student: nn.Module, short: bool) -> int:
    """Return the bytes of the student's file if its vectors are made short as `land` does; the student stays as it is."""
    state = student.state_dict()
    return encoded_size(compact_state(student, state) if short else state, student)


def size_of(model: nn.Module) -> int:
    """Return the bytes of the file of a rounded network, of which `finish` is still to come."""
    return size_now(model, has_short_vectors(model))


def finish(model: nn.Module, short: bool) -> None:
    """Fold batch norms and round vectors in place, if `short`."""
    if short:
        make_compact(model)


def land(
    student: nn.Module, coded: CodedWeights, objective: Objective, batches: Batches, budget: int, short: bool
) -> int | None:
    """Write the final values into the student so that its file fits; return its bytes, or None if no μ does.

    Args:
        short: Fold batch norms, and round vectors to bfloat16 values.
    """
    coded.write()
    estimate_norms(student, objective, batches)
    fitting: int | None = None
    for _ in range(_ROUNDS):
        coded.write()
        size = size_now(student, short)
        if _FITS * budget <= size <= budget:
            finish(student, short)
            return size
        fitting = size if size <= budget else None
        coded.learn_size(size)
        before = coded.mu
        coded.fit(_AIM * budget)
        if coded.mu == before:  # no finer codes are left
            break
    finish(student, short)
    return fitting


def estimate_norms(student: nn.Module, objective: Objective, batches: Batches) -> None:
    """Estimate batch norms anew, unless the statistics that are there bring held-out batches nearer to the dense network."""
    norms = [module for module in student.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    if not norms:
        return
    before = [(buffer, buffer.clone()) for norm in norms for buffer in norm.buffers()]
    distance = objective.distance(student, batches.held_out)
    recalibrate_norms(student, [as_given(call) for call in batches.calibration])
    if not objective.distance(student, batches.held_out) < distance:
        for buffer, value in before:
            buffer.copy_(value)
