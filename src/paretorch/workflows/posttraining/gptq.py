"""Post-training rivals: GPTQ, which rounds; SparseGPT and Wanda, which prune.

GPTQ (Frantar et al., 2022, arXiv:2210.17323): fixed bits, minimum and maximum of each group of inputs as its grid.
Algorithm 1 with groups: columns in their own order, a damping of 1 % of the mean diagonal, and at the first column of a group
its scale and zero point, from the weights as they are then. Embeddings and other weights without inputs are rounded to
nearest on the same grids.

With H = E[x xᵀ] of a layer's inputs x, and U the upper Cholesky factor of H⁻¹ (UᵀU = H⁻¹):

    Wanda      drops, in each row of W, the weights with the least |W_ij| · √H_jj (Sun et al., 2023, arXiv:2306.11695)
    SparseGPT  drops, in each block of 128 columns, those with the least W_ij² / U_jj², when the block is reached; the
               columns to come then make up for the error, w_k ← w_k − (w_j / U_jj) · U_jk (Frantar and Alistarh, 2023,
               arXiv:2301.00774, Algorithm 1 without quantization)

What differs from the papers: a stage is a run of layers and not a transformer block, convolutions are treated too, and the
damping of H is 1 % of its mean diagonal in all layers. Inputs are those of the network whose earlier stages are done.
Biases and norms stay as they are; the two that prune leave weights without inputs as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from paretorch.deploy.plain import copied, plain
from paretorch.edits import forget_scales
from paretorch.errors import ConfigError
from paretorch.workflows.posttraining.calibration import collect, execution_order, read_batches, stages
from paretorch.workflows.posttraining.layers import find_layers
from paretorch.workflows.posttraining.solver import factorize

DAMPING = 0.01


def gptq(
    model: nn.Module, batches: Iterable[Any], *, bits: int, group: int, most_batches: int = 64, most_stages: int = 12
) -> nn.Module:
    """Return a copy of the model with weights rounded to `bits` in groups of `group` inputs."""
    if not 2 <= bits <= 8 or group < 1:
        raise ConfigError(f"bits={bits}, group={group}: give 2 to 8 bits, in groups of at least one input")
    return change_in_stages(
        model,
        batches,
        lambda matrix, hessian: round_in_groups(matrix, hessian, bits, group),
        most_batches=most_batches,
        most_stages=most_stages,
    )


@torch.no_grad()
def change_in_stages(
    model: nn.Module,
    batches: Iterable[Any],
    change: Callable[[Tensor, Tensor | None], Tensor],
    *,
    include: Any = None,
    exclude: Any = (),
    most_batches: int = 64,
    most_stages: int = 12,
) -> nn.Module:
    """Return a copy of the model whose weights are changed layer by layer, in the order in which the layers run.

    Args:
        change: From a weight (groups, rows, columns) and H = E[x xᵀ] of its inputs to the new weight. The inputs are those that the changed
            layers of the earlier stages give; H is None for weights without inputs, such as embeddings.
        include, exclude: Which weights, as in `compress`.
    """
    result = copied(plain(model, "post-training"), "post-training")
    given = read_batches(batches, most_batches, result, next(result.parameters()).device)
    layers, once = execution_order(result, given[0], find_layers(result, include, exclude))
    forget_scales(result, {layer.name for layer in layers})
    for stage in stages(layers, most_stages):
        moments = collect(result, given, stage, once)
        for layer in stage:
            found = moments.pop(layer, None)
            layer.weight.copy_(layer.tensor(change(layer.matrix(), None if found is None else found.hessian)))
    return result


def round_in_groups(matrix: Tensor, hessian: Tensor | None, bits: int, group: int) -> Tensor:
    """Return the rounded weights (groups, rows, columns); without a Hessian each is rounded to nearest."""
    columns = matrix.shape[2]
    factor = None
    if hessian is not None:
        factor = factorize(hessian, DAMPING, order=torch.arange(columns, device=matrix.device)).factor
    work, rounded = matrix.clone(), torch.empty_like(matrix)
    for start in range(0, columns, group):
        end = min(start + group, columns)
        scale, zero = _grid(work[:, :, start:end], bits)
        for j in range(start, end):
            codes = ((work[:, :, j] / scale).round() + zero).clamp(0, 2**bits - 1)
            rounded[:, :, j] = scale * (codes - zero)
            if factor is not None and j + 1 < columns:
                error = (work[:, :, j] - rounded[:, :, j]) / factor[:, j, j, None]
                work[:, :, j + 1 :] -= error[:, :, None] * factor[:, None, j, j + 1 :]
    return rounded


def _grid(part: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Return the scale, in half precision, and the zero point of each row of a group."""
    low, high = part.amin(2).clamp_max(0.0), part.amax(2).clamp_min(0.0)
    scale = ((high - low) / (2**bits - 1)).clamp_min(1e-7).half().float()
    return scale, (-low / scale).round()


def packed_bytes(model: nn.Module, bits: int, group: int) -> int:
    """Return the bytes of a GPTQ network as packed: codes, a half-precision scale and a zero point per group, vectors in 16 bits."""
    layers = find_layers(model)
    total = 0.0
    for layer in layers:
        groups, rows, columns = layer.matrix().shape
        total += layer.weight.numel() * bits / 8 + groups * rows * -(-columns // group) * (2 + bits / 8)
    rounded = {id(layer.weight) for layer in layers}
    state: dict[str, Any] = model.state_dict(keep_vars=True)
    rest = {id(one): one for one in state.values() if isinstance(one, Tensor) and id(one) not in rounded}
    return int(total) + sum(2 * one.numel() for one in rest.values())


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
