"""GPTQ, the rival, against the paper's algorithm written out with explicit inverses."""

import pytest
import torch
from torch import Tensor

from paretorch.errors import ConfigError
from paretorch.workflows.posttraining.gptq import gptq, packed_bytes, round_in_groups
from tests.workflows.posttraining.networks import perceptron, vectors


def written_out(matrix: Tensor, hessian: Tensor, bits: int, group: int) -> Tensor:
    weights, columns = matrix.double().clone(), matrix.shape[1]
    damped = hessian.double() + 0.01 * hessian.double().diagonal().mean() * torch.eye(columns, dtype=torch.float64)
    rounded = torch.zeros_like(weights)
    for j in range(columns):
        if j % group == 0:
            part = weights[:, j : j + group]
            low, high = part.min(1).values.clamp_max(0), part.max(1).values.clamp_min(0)
            scale = ((high - low) / (2**bits - 1)).half().double()
            zero = torch.round(-low / scale)
        rounded[:, j] = scale * ((torch.round(weights[:, j] / scale) + zero).clamp(0, 2**bits - 1) - zero)
        inverse = torch.linalg.inv(damped[j:, j:])  # of the columns that are still free
        weights[:, j:] -= torch.outer((weights[:, j] - rounded[:, j]) / inverse[0, 0], inverse[0])
    return rounded


@pytest.mark.parametrize(("bits", "group"), [(4, 8), (3, 32), (2, 5)])
def test_as_in_the_paper(bits: int, group: int) -> None:
    generator = torch.Generator().manual_seed(bits)
    samples = torch.randn(100, 24, generator=generator) @ torch.randn(24, 24, generator=generator)
    hessian = samples.t() @ samples / 100
    matrix = torch.randn(10, 24, generator=generator)
    ours = round_in_groups(matrix[None], hessian[None], bits, group)[0]
    expected = written_out(matrix, hessian, bits, group).float()
    assert torch.isclose(ours, expected, atol=1e-3).float().mean() > 0.97  # a tie may fall to the other side


def test_it_beats_rounding_to_nearest_on_the_same_grid() -> None:
    model = perceptron()
    small = gptq(model, vectors(), bits=3, group=16)
    nearest = perceptron()
    for module in nearest:
        if isinstance(module, torch.nn.Linear):
            module.weight.data = round_in_groups(module.weight.data[None], None, 3, 16)[0]
    x = vectors(seed=8)[0]
    assert (small(x) - model(x)).square().mean() < (nearest(x) - model(x)).square().mean()


def test_packed_bytes_are_codes_scales_zero_points_and_vectors() -> None:
    weights, groups, vectors_ = 48 * 96 + 96 * 64 + 64 * 10, 96 * 3 + 64 * 6 + 10 * 4, 96 + 64 + 10
    assert packed_bytes(perceptron(), 4, 16) == int(weights / 2 + groups * 2.5) + 2 * vectors_


def test_options_that_cannot_work() -> None:
    with pytest.raises(ConfigError, match="2 to 8 bits"):
        gptq(perceptron(), vectors(), bits=1, group=16)
