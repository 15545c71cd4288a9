"""One layer's solver against a literal transcription of Optimal Brain Quantization, and against all codes there are."""

import itertools

import pytest
import torch
from torch import Tensor

from paretorch.workflows.posttraining.solver import (
    Curvature,
    choose_steps,
    factorize,
    fit_lengths,
    identity,
    round_matrix,
)


def drawn(rows: int, columns: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    derive_seed = torch.randn(columns, columns, generator=generator)
    samples = torch.randn(200, columns, generator=generator) @ derive_seed
    return torch.randn(1, rows, columns, generator=generator), (samples.t() @ samples / 200)[None]


def change(matrix: Tensor, rounded: Tensor, hessian: Tensor) -> float:
    off = (matrix - rounded).double()
    return float(((off @ hessian.double()) * off).sum())


def steps_for(matrix: Tensor, curvature: Curvature, price: float) -> Tensor:
    return choose_steps(matrix, curvature.scale, torch.ones_like(matrix[:, :, :1]), 1, price)


def brain_surgeon(row: Tensor, hessian: Tensor, step: float, order: list[int], cost) -> list[int]:
    """OBQ, one row: after each weight all others move by −(w − q) / [H⁻¹]_jj · H⁻¹_j, and the weight leaves H⁻¹."""
    weights, inverse = row.double().clone(), torch.linalg.inv(hessian.double())
    codes = [0] * len(row)
    for j in order:
        nearest = int(torch.round(weights[j] / step))
        toward = nearest - (nearest > 0) + (nearest < 0)
        found = [nearest, toward, 0]
        costs = [float((weights[j] - q * step) ** 2 / inverse[j, j]) + cost(q, j) for q in found]
        codes[j] = found[costs.index(min(costs))]
        error = (weights[j] - codes[j] * step) / inverse[j, j]
        weights -= error * inverse[:, j]
        weights[j] = codes[j] * step
        inverse = inverse - torch.outer(inverse[:, j], inverse[j]) / inverse[j, j]
        inverse[j, :] = inverse[:, j] = 0
    return codes


@pytest.mark.parametrize("seed", range(5))
def test_without_a_price_it_is_brain_surgery_in_a_fixed_order(seed: int) -> None:
    matrix, hessian = drawn(6, 70, seed)  # more columns than one block
    step = torch.tensor(0.4).view(1, 1, 1)
    curvature = factorize(hessian, 0.0)
    codes = round_matrix(matrix, curvature, step, 0.0)
    order = curvature.order.tolist()
    expected = [brain_surgeon(row, hessian[0], 0.4, order, lambda q, j: 0.0) for row in matrix[0]]
    same = codes[0] == torch.tensor(expected, dtype=codes.dtype)
    assert same.float().mean() > 0.99  # a tie in fp32 may fall to the other side


@pytest.mark.parametrize("seed", range(3))
def test_with_a_price_each_weight_weighs_its_bits(seed: int) -> None:
    matrix, hessian = drawn(40, 12, seed)
    step, price = torch.tensor(0.5).view(1, 1, 1), 0.05
    curvature = factorize(hessian, 0.0)
    codes = round_matrix(matrix, curvature, step, 0.0)
    for _ in range(2):
        lengths = fit_lengths(codes)

        def cost(q: int, j: int, row: int, lengths=lengths) -> float:
            of = lengths.of[j] if lengths.axis == 2 else lengths.of[row]
            return price * float(lengths.table[of, q + 500])

        found = [
            brain_surgeon(own, hessian[0], 0.5, curvature.order.tolist(), lambda q, j, i=i: cost(q, j, i))
            for i, own in enumerate(matrix[0])
        ]
        codes = torch.tensor(found, dtype=torch.float32)[None]
    assert (round_matrix(matrix, curvature, step, price) == codes).float().mean() > 0.98


def test_between_the_best_of_all_codes_and_rounding_to_nearest() -> None:
    ours, nearest, least = 0.0, 0.0, 0.0
    for seed in range(40):
        matrix, hessian = drawn(1, 4, seed)
        step = torch.tensor(0.7).view(1, 1, 1)
        rounded = round_matrix(matrix, factorize(hessian, 0.0), step, 0.0) * step
        grid = [[float(w / 0.7).__round__() + d for d in (-2, -1, 0, 1, 2)] for w in matrix[0, 0]]
        tried = torch.tensor(list(itertools.product(*grid)))[None] * step
        errors = ((matrix - tried) @ hessian * (matrix - tried)).sum(2)
        assert change(matrix, rounded, hessian) >= float(errors.min()) - 1e-4
        ours += change(matrix, rounded, hessian)
        nearest += change(matrix, (matrix / step).round() * step, hessian)
        least += float(errors.min())
    assert ours < 0.6 * nearest
    assert ours < 2.0 * least


def test_a_higher_price_costs_fewer_bits_and_more_error() -> None:
    matrix, hessian = drawn(64, 48, 0)
    curvature = factorize(hessian, 0.01)
    bits, errors = [], []
    for price in (0.001, 0.01, 0.1, 1.0):
        steps = steps_for(matrix, curvature, price)
        codes = round_matrix(matrix, curvature, steps, price)
        bits.append(fit_lengths(codes).total)
        errors.append(change(matrix, codes * steps, hessian))
    assert bits == sorted(bits, reverse=True)
    assert errors == sorted(errors)


def test_the_bits_in_the_objective_pay_at_low_rates() -> None:
    """At the same bits, codes chosen with their price have less error than codes on a coarser grid."""
    matrix, hessian = drawn(200, 32, 1)
    curvature = factorize(hessian, 0.01)
    price = 3.0
    steps = steps_for(matrix, curvature, price)
    codes = round_matrix(matrix, curvature, steps, price)
    bits, error = fit_lengths(codes).total, change(matrix, codes * steps, hessian)
    factor = 1.0
    while True:
        factor *= 1.02
        plain = round_matrix(matrix, curvature, steps * factor, 0.0)
        if fit_lengths(plain).total <= bits:
            break
    assert error < change(matrix, plain * steps * factor, hessian)


def test_no_price_and_a_fine_step_give_the_weights_back() -> None:
    matrix, hessian = drawn(8, 16, 2)
    steps = steps_for(matrix, factorize(hessian, 0.01), 1e-30)
    rounded = round_matrix(matrix, factorize(hessian, 0.01), steps, 0.0) * steps
    assert (rounded - matrix).abs().max() <= matrix.abs().max() / 200  # codes go up to 500
    assert change(matrix, rounded, hessian) <= 1e-5 * change(matrix, torch.zeros_like(matrix), hessian)


def test_inputs_that_never_occur_cost_nothing() -> None:
    matrix, hessian = drawn(50, 20, 3)
    hessian[:, 5] = hessian[:, :, 5] = 0
    curvature = factorize(hessian, 0.001)
    codes = round_matrix(matrix, curvature, steps_for(matrix, curvature, 0.05), 0.05)
    assert not codes[:, :, 5].any()
    assert codes.any()


def test_without_inputs_weights_are_rounded_each_by_itself() -> None:
    matrix, _ = drawn(30, 10, 4)
    steps = torch.tensor(0.3).view(1, 1, 1)
    assert torch.equal(round_matrix(matrix, identity(matrix), steps, 0.0), (matrix / 0.3).round())


def test_a_column_has_its_own_step_if_columns_differ() -> None:
    matrix, _ = drawn(400, 8, 5)
    hessian = torch.diag(torch.tensor([1.0, 1, 1, 1, 400, 400, 400, 400]))[None]
    steps = steps_for(matrix, factorize(hessian, 0.0), 0.01).flatten()
    assert steps.numel() == 8
    assert torch.allclose(steps[:4] / steps[4:], torch.tensor(20.0), rtol=0.1)
    assert steps_for(matrix, factorize(torch.eye(8)[None], 0.0), 0.01).numel() == 1


def test_a_row_has_its_own_step_if_gains_differ() -> None:
    matrix, _ = drawn(8, 400, 6)
    gains = torch.tensor([1.0, 1, 1, 1, 16, 16, 16, 16]).view(1, 8, 1)
    steps = choose_steps(matrix, torch.ones(1, 1, 400), gains, 1, 0.01)
    assert steps.shape == (1, 8, 1)
    assert torch.allclose(steps[0, :4, 0] / steps[0, 4:, 0], torch.tensor(16.0), rtol=0.1)
