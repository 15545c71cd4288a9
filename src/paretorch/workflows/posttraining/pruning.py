"""SparseGPT and Wanda, the rivals that prune without training.

With H = E[x xᵀ] of a layer's inputs x, and U the upper Cholesky factor of H⁻¹ (UᵀU = H⁻¹):

    Wanda      drops, in each row of W, the weights with the least |W_ij| · √H_jj
    SparseGPT  drops, in each block of 128 columns, those with the least W_ij² / U_jj², when the block is reached; the columns to come
               then make up for the error, w_k ← w_k − (w_j / U_jj) · U_jk

Wanda: Sun et al., 2023, arXiv:2306.11695. SparseGPT: Frantar and Alistarh, 2023, arXiv:2301.00774, Algorithm 1 without quantization. What differs
from the papers: a stage is a run of layers and not a transformer block, convolutions are pruned too, and the damping of H is 1 % of
its mean diagonal in all layers. Weights without inputs (embeddings, recurrent layers) stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from paretorch.errors import ConfigError
from paretorch.workflows.posttraining.gptq import DAMPING, change_in_stages
from paretorch.workflows.posttraining.solver import factorize

BLOCK = 128  # columns that are compared with each other


def wanda(model: nn.Module, batches: Iterable[Any], *, target: float, exclude: Any = ()) -> nn.Module:
    """Return a copy of the model with a share `target` of each row's weights dropped by Wanda."""
    return _prune(model, batches, drop_by_wanda, target, exclude)


def sparsegpt(model: nn.Module, batches: Iterable[Any], *, target: float, exclude: Any = ()) -> nn.Module:
    """Return a copy of the model with a share `target` of the weights of each block of columns dropped by SparseGPT."""
    return _prune(model, batches, drop_by_sparsegpt, target, exclude)


def _prune(
    model: nn.Module,
    batches: Iterable[Any],
    rule: Callable[[Tensor, Tensor | None, float], Tensor],
    target: float,
    exclude: Any,
) -> nn.Module:
    if not 0.0 <= target < 1.0:
        raise ConfigError(f"target={target}: the share of weights to drop is at least 0 and below 1")
    return change_in_stages(model, batches, lambda matrix, hessian: rule(matrix, hessian, target), exclude=exclude)


def drop_by_wanda(matrix: Tensor, hessian: Tensor | None, target: float) -> Tensor:
    """Return the weights (groups, rows, columns) with the least important of each row at zero."""
    if hessian is None:
        return matrix
    scores = matrix.abs() * hessian.diagonal(dim1=1, dim2=2).sqrt()[:, None]
    dropped = scores.argsort(dim=2, stable=True)[:, :, : round(target * matrix.shape[2])]
    return matrix.scatter(2, dropped, 0.0)


def drop_by_sparsegpt(matrix: Tensor, hessian: Tensor | None, target: float) -> Tensor:
    """Return the weights (groups, rows, columns) with the least important of each block at zero, and the others moved to make up for it."""
    if hessian is None:
        return matrix
    groups, rows, columns = matrix.shape
    factor = factorize(hessian, DAMPING, order=torch.arange(columns, device=matrix.device)).factor
    assert factor is not None
    roots, work = factor.diagonal(dim1=1, dim2=2), matrix.clone()
    for start in range(0, columns, BLOCK):
        end = min(start + BLOCK, columns)
        scores = (work[:, :, start:end] / roots[:, None, start:end]).square().reshape(groups, -1)
        dropped = scores.argsort(dim=1, stable=True)[:, : round(target * scores.shape[1])]
        kept = torch.ones_like(scores).scatter(1, dropped, 0.0).view(groups, rows, end - start)
        errors = torch.zeros_like(kept)
        for j in range(start, end):
            own = work[:, :, j].clone()
            work[:, :, j] *= kept[:, :, j - start]
            errors[:, :, j - start] = (own - work[:, :, j]) / roots[:, None, j]
            work[:, :, j + 1 : end] -= errors[:, :, j - start, None] * factor[:, None, j, j + 1 : end]
        work[:, :, end:] -= errors @ factor[:, start:end, end:]
    return work
