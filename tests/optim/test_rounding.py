"""Stochastic rounding of bf16 state: unbiased, repeatable, and the same for a tensor and its parts."""

from __future__ import annotations

import pytest
import torch

from paretorch.optim import AvaGrad
from paretorch.optim.kernels.bucket import round_to_bf16, stream_key


def rounded(values: torch.Tensor, key: int, step: int, offset: int = 0) -> torch.Tensor:
    out = torch.empty_like(values, dtype=torch.bfloat16)
    round_to_bf16(values, out, key, step, offset)
    return out


def test_rounding_is_unbiased() -> None:
    value = 1 + 2.0**-9  # a quarter of the way to the next bf16
    draws = rounded(torch.full((100_000,), value), stream_key(0, 1, 0), 5).float()
    assert set(draws.unique().tolist()) == {1.0, 1 + 2.0**-7}
    assert draws.mean().item() == pytest.approx(value, abs=2e-5)


def test_repeatable_and_independent() -> None:
    values = torch.rand(4000)
    key = stream_key(7, 1, 0)
    first = rounded(values, key, 3)
    assert torch.equal(first, rounded(values, key, 3))
    assert torch.equal(first, torch.cat([rounded(values[:1000], key, 3), rounded(values[1000:], key, 3, 1000)]))
    for other in (
        rounded(values, key, 4),
        rounded(values, stream_key(8, 1, 0), 3),
        rounded(values, stream_key(7, 1, 1), 3),
    ):
        assert not torch.equal(first, other)


def test_a_step_count_on_the_device_gives_the_same_random_bits() -> None:
    values = torch.rand(1000)
    out = torch.empty(1000, dtype=torch.bfloat16)
    round_to_bf16(values, out, stream_key(2**31, 3, 1), torch.tensor(9.0), 0)
    assert torch.equal(out, rounded(values, stream_key(2**31, 3, 1), 9))


def test_bf16_values_are_not_changed() -> None:
    values = torch.tensor([0.0, -0.0, 1.0, -2.5, 1e-38, 3e38, float("inf"), float("-inf")]).bfloat16().float()
    assert torch.equal(rounded(values, 1, 1).float(), values)
    assert rounded(torch.full((9,), float("nan")), 1, 1).isnan().all()


@pytest.mark.parametrize("options", [{}, {"foreach": True}], ids=str)
def test_second_moments_still_move_at_a_small_rate(options) -> None:
    """β₂ = 0.999 changes v by less than bf16 resolves: rounded to nearest it would never reach its limit."""
    p = torch.zeros(2000, requires_grad=True)
    optimizer = AvaGrad([p], lr=0.0, state_dtype=torch.bfloat16, seed=1, **options)
    for _ in range(1500):
        p.grad = torch.ones_like(p)
        optimizer.step()
    v = optimizer.state[p]["exp_avg_sq"]
    assert v.dtype == torch.bfloat16
    assert v.float().mean().item() == pytest.approx(1 - 0.999**1500, rel=0.01)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.complex128])
@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"foreach": False}], ids=str)
def test_wide_and_complex_parameters_may_have_narrow_state(dtype, options) -> None:
    torch.manual_seed(0)
    p = torch.randn(64, dtype=dtype).requires_grad_()
    twin = p.detach().clone().requires_grad_()
    narrow, wide = AvaGrad([p], state_dtype=torch.bfloat16, **options), AvaGrad([twin], **options)
    for _ in range(5):
        p.grad = torch.randn_like(p)
        twin.grad = p.grad.clone()
        narrow.step(), wide.step()
    assert narrow.state[p]["exp_avg"].dtype == torch.bfloat16
    torch.testing.assert_close(p, twin, rtol=0.02, atol=0.02)
