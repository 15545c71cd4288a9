"""The end of training: codes that fit into the budget, norms estimated anew, vectors as the file holds them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from paretorch.core.finish.recalibrate import recalibrate_norms
from paretorch.deploy import encoded_size
from paretorch.workflows.posttraining.norms import round_vectors
from paretorch.workflows.shrink.batches import Batches, as_given
from paretorch.workflows.shrink.coded import CodedWeights
from paretorch.workflows.shrink.objective import Objective

_FITS = 0.97  # of the budget: a smaller file is tried again with a smaller μ
_AIM = 0.995
_ROUNDS = 6


def file_size(model: nn.Module) -> int:
    """Return the bytes of the file that `paretorch.save` writes."""
    return encoded_size(model.state_dict(), model)


def has_short_vectors(model: nn.Module) -> bool:
    """Whether norms and biases are bfloat16 values, as post-training leaves them if that pays."""
    vectors = [t for t in model.state_dict().values() if t.dtype == torch.float32 and t.dim() == 1]
    return all(bool((t.bfloat16().float() == t).all()) for t in vectors)


@torch.no_grad()
def size_now(student: nn.Module, short: bool) -> int:
    """Return the bytes of the student's file if its vectors are rounded as `land` does; the student stays as it is."""
    vectors = [(tensor, tensor.clone()) for tensor in student.state_dict().values() if tensor.dim() == 1]
    if short:
        round_vectors(student)
    size = file_size(student)
    for tensor, value in vectors:
        tensor.copy_(value)
    return size


def land(
    student: nn.Module, coded: CodedWeights, objective: Objective, batches: Batches, budget: int, short: bool
) -> int | None:
    """Write the final values into the student so that its file fits; return its bytes, or None if no μ does.

    Args:
        short: Round vectors to bfloat16 values.
    """
    coded.write()
    estimate_norms(student, objective, batches)
    vectors = [p.detach().clone() for p in coded.others]
    fitting: int | None = None
    for _ in range(_ROUNDS):
        coded.write()
        if short:
            round_vectors(student)
        size = file_size(student)
        if _FITS * budget <= size <= budget:
            return size
        fitting = size if size <= budget else None
        coded.learn_size(size)
        before = coded.mu
        coded.fit(_AIM * budget)
        if coded.mu == before:  # no finer codes are left
            break
        _put_back(coded, vectors)
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


@torch.no_grad()
def _put_back(coded: CodedWeights, vectors: list[Tensor]) -> None:
    for p, value in zip(coded.others, vectors, strict=True):
        p.copy_(value)
