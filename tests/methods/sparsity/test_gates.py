"""Gates are soft steps, and the slopes that the plan uses are their derivatives."""

import pytest
import torch

from paretorch.methods.sparsity.mask import GATES

BETAS = [1.0, 7.5, 200.0]
every_gate = pytest.mark.parametrize("name", list(GATES))


@every_gate
@pytest.mark.parametrize("beta", BETAS)
def test_rises_from_0_to_1_through_one_half(name: str, beta: float) -> None:
    s = torch.linspace(-3, 3, 301, dtype=torch.float64)
    m = GATES[name].value(s, torch.tensor(beta))
    assert float(m.min()) >= 0.0
    assert float(m.max()) <= 1.0
    assert bool((m.diff() >= 0).all())
    assert float(GATES[name].value(torch.zeros(()), torch.tensor(beta))) == 0.5
    torch.testing.assert_close(m + m.flip(0), torch.ones_like(m))


@every_gate
def test_becomes_the_step_function(name: str) -> None:
    s = torch.tensor([-1.0, -0.5, 0.5, 1.0])
    m = GATES[name].value(s, torch.tensor(1e6))
    torch.testing.assert_close(m, (s >= 0).float(), rtol=0, atol=1e-5)


@every_gate
@pytest.mark.parametrize("beta", BETAS)
def test_slope_is_the_derivative(name: str, beta: float) -> None:
    s = torch.linspace(-2, 2, 81, dtype=torch.float64, requires_grad=True)
    b = torch.tensor(beta, dtype=torch.float64)
    (expected,) = torch.autograd.grad(GATES[name].value(s, b).sum(), s)
    torch.testing.assert_close(GATES[name].slope(s.detach(), b), expected, rtol=1e-9, atol=1e-12)


@every_gate
@pytest.mark.parametrize("s", [-60.0, 60.0])
def test_finite_where_a_restart_has_gone(name: str, s: float) -> None:
    """βs = ±12,000 in fp32: value, slope and the gradient by autograd."""
    at, beta = torch.tensor(s, requires_grad=True), torch.tensor(200.0)
    value = GATES[name].value(at, beta)
    (gradient,) = torch.autograd.grad(value, at)
    assert float(value.detach()) == pytest.approx(float(s > 0), abs=1e-4)
    assert float(gradient) == pytest.approx(0.0, abs=1e-5)
    assert float(GATES[name].slope(at.detach(), beta)) == pytest.approx(0.0, abs=1e-5)
