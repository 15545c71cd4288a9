"""Codes of least error + price · bits, and latents that give the codes that they were made from."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from paretorch.workflows.shrink.coded import MU, CodedWeight, CodedWeights, code_bits, entropy_bits, zones


def _weights(seed: int, spread: float) -> tuple[nn.Linear, nn.Linear, torch.Tensor]:
    """A dense layer, one with other codes than those of rounding to nearest, and steps by column."""
    torch.manual_seed(seed)
    dense, rounded = nn.Linear(24, 16), nn.Linear(24, 16)
    step = spread * (0.5 + torch.rand(1, 24))
    with torch.no_grad():
        codes = (dense.weight / step + 0.6 * torch.randn(16, 24)).round()
        rounded.weight.copy_(codes * step)
    return dense, rounded, step


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.sampled_from([0.02, 0.1, 0.4]))
def test_latents_give_the_codes_they_were_made_from(seed: int, spread: float) -> None:
    dense, rounded, step = _weights(seed, spread)
    before = rounded.weight.detach().clone()
    coded = CodedWeights(rounded, dense, {"weight": step}, 1000)
    assert coded.expected() == pytest.approx(1000)
    coded.write()
    torch.testing.assert_close(rounded.weight.detach(), before)
    assert not bool((rounded.weight.detach().signbit() & (rounded.weight.detach() == 0)).any())  # −0 is another value


def test_codes_minimize_error_and_price() -> None:
    """By trying all codes, with a code of k costing bits(0) + zero_bits + (k − 1) · tail_bits."""
    zero_bits, tail_bits, price = 2.3, 1.1, MU
    latent = nn.Parameter(torch.linspace(-4.0, 4.0, 4001) + 1e-5)
    found = CodedWeight(latent, latent, torch.ones(1), None, zero_bits, tail_bits).codes(price)
    tried = torch.arange(-6, 7).float()
    bits = torch.where(tried == 0, 0.0, zero_bits + (tried.abs() - 1) * tail_bits)
    # error + price · bits with steps Δ² = 6 / ln 2 · price: in units of Δ², (x − k)² + μ · bits
    cost = (latent.detach()[:, None] - tried).square() + price * bits
    assert torch.equal(found, tried[cost.argmin(1)])


def test_bits_follow_from_frequencies() -> None:
    codes = torch.tensor([0.0] * 60 + [1.0] * 15 + [-1.0] * 15 + [2.0, -2.0] * 5)
    zero, tail = code_bits(codes)
    assert zero == pytest.approx(math.log2(61 / 16))
    assert tail == pytest.approx(math.log2(5))  # a geometric distribution of mean 1.25 falls by 5
    expected = -sum(p * math.log2(p) for p in (0.6, 0.15, 0.15, 0.05, 0.05)) * 100
    assert entropy_bits(codes) == pytest.approx(expected)
    assert zones(zero, tail, 0.0) == (0.0, 0.0)


def test_a_larger_price_makes_a_smaller_file() -> None:
    dense, rounded, step = _weights(3, 0.05)
    coded = CodedWeights(rounded, dense, {"weight": step}, 1000)
    sizes = []
    for factor in (0.0, 1.0, 4.0, 16.0):
        coded.mu = factor * MU
        sizes.append(coded.expected())
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < sizes[0]
    aim = 0.5 * (sizes[0] + sizes[-1])
    coded.fit(aim)
    assert 0.97 * aim <= coded.expected() <= aim


def test_a_copied_state_is_come_back_to() -> None:
    dense, rounded, step = _weights(4, 0.1)
    coded = CodedWeights(rounded, dense, {"weight": step}, 1000)
    before, state = {k: v.clone() for k, v in rounded.state_dict().items()}, coded.copy_state()
    with torch.no_grad():
        for p in coded.parameters():
            p += 0.3
    coded.mu = 1.0
    coded.write()
    assert not torch.equal(rounded.weight, before["weight"])
    coded.load(state)
    assert all(torch.equal(value, before[name]) for name, value in rounded.state_dict().items())
    assert coded.mu == MU
