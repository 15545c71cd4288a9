"""SparseGPT and Wanda, the rivals, against the papers' algorithms written out."""

import pytest
import torch
from torch import Tensor, nn

from paretorch.errors import ConfigError
from paretorch.workflows.posttraining.gptq import drop_by_sparsegpt, drop_by_wanda, sparsegpt, wanda
from tests.workflows.posttraining.networks import perceptron, vectors


def layer(rows: int, columns: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    samples = torch.randn(3 * columns, columns, generator=generator) @ torch.randn(
        columns, columns, generator=generator
    )
    return torch.randn(rows, columns, generator=generator), samples.t() @ samples / len(samples)


def sparsegpt_written_out(matrix: Tensor, hessian: Tensor, target: float, block: int = 128) -> Tensor:
    """With an explicit inverse of the columns that are still free, at each column."""
    weights, columns = matrix.double().clone(), matrix.shape[1]
    damped = hessian.double() + 0.01 * hessian.double().diagonal().mean() * torch.eye(columns, dtype=torch.float64)
    free = [torch.linalg.inv(damped[j:, j:]) for j in range(columns)]
    for j in range(columns):
        if j % block == 0:
            part = weights[:, j : j + block]
            scores = part.square() / torch.stack([free[k][0, 0] for k in range(j, j + part.shape[1])])
            limit = scores.flatten().sort().values[round(target * scores.numel()) - 1]
            dropped = scores <= limit
        error = torch.where(dropped[:, j % block], weights[:, j], 0.0) / free[j][0, 0]
        weights[:, j:] -= torch.outer(error, free[j][0])
    return weights


@pytest.mark.parametrize(("columns", "target"), [(24, 0.5), (24, 0.9), (150, 0.7)])
def test_sparsegpt_is_that_of_the_paper(columns: int, target: float) -> None:
    matrix, hessian = layer(6, columns, seed=columns)
    ours = drop_by_sparsegpt(matrix[None], hessian[None], target)[0]
    expected = sparsegpt_written_out(matrix, hessian, target).float()
    assert torch.equal(ours == 0, expected.abs() < 1e-6)
    assert torch.allclose(ours, expected, atol=2e-3)


@pytest.mark.parametrize("target", [0.25, 0.5, 0.9])
def test_wanda_is_that_of_the_paper(target: float) -> None:
    matrix, hessian = layer(5, 20, seed=1)
    ours = drop_by_wanda(matrix[None], hessian[None], target)[0]
    for row, kept in zip(matrix, ours, strict=True):
        scores = [(abs(float(w)) * float(hessian[j, j]) ** 0.5, j) for j, w in enumerate(row)]
        dropped = {j for _, j in sorted(scores)[: round(target * 20)]}
        assert [float(value) for value in kept] == [0.0 if j in dropped else float(w) for j, w in enumerate(row)]


@torch.no_grad()
def error_of(small: nn.Module, model: nn.Module) -> float:
    x = vectors(seed=8)[0]
    return float((small(x) - model(x)).square().mean())


def test_the_more_is_known_the_smaller_the_error() -> None:
    model = perceptron()
    naive = perceptron()
    for module in naive:
        if isinstance(module, nn.Linear):
            module.weight.data = drop_by_wanda(module.weight.data[None], torch.eye(module.in_features)[None], 0.6)[0]
    by_wanda, by_sparsegpt = wanda(model, vectors(), target=0.6), sparsegpt(model, vectors(), target=0.6)
    assert error_of(by_sparsegpt, model) < error_of(by_wanda, model) < error_of(naive, model)


def test_the_model_stays_as_it_is_and_the_copy_has_the_zeros() -> None:
    model = perceptron()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    small = sparsegpt(model, vectors(), target=0.75, exclude="0.weight")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    zeros = [float((m.weight == 0).float().mean()) for m in small if isinstance(m, nn.Linear)]
    assert zeros == pytest.approx([0.0] + [0.75] * (len(zeros) - 1), abs=0.01)


def test_options_that_cannot_work() -> None:
    with pytest.raises(ConfigError, match="below 1"):
        wanda(perceptron(), vectors(), target=1.0)
