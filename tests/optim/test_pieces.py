"""On a CPU, coordinates that are dead, or nearly, are stepped as all others are, only with care for speed."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paretorch.optim import AnnealedAdam, AvaGrad, AvaGradW, DelayedAdam

SIZES = [0.0, 1e-30, 1e-24, 1e-19, 1e-8, 1.0, 1e10]
"""Of gradients: none; those whose squares are 0, subnormal and small in fp32; usual and large ones."""
step_of_sizes = st.lists(st.sampled_from(SIZES), min_size=6, max_size=6)


def gradients(sizes: list[float]) -> Tensor:
    signs = torch.tensor([1.0, -1.0] * 3)
    return torch.tensor(sizes) * signs


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(step_of_sizes, min_size=1, max_size=5),
    eps=st.sampled_from([1e-20, 1e-12, 1e-8, 0.1]),
    kind=st.sampled_from([AvaGrad, AvaGradW, DelayedAdam, AnnealedAdam]),
    fused=st.sampled_from([None, True]),
)
def test_every_size_of_gradient_is_stepped_as_one_tensor_at_a_time(steps, eps, kind, fused) -> None:
    options = {"steps": 5} if kind is AnnealedAdam else {}
    weights = []
    for mode in ({"fused": fused}, {"foreach": False}):
        p = torch.linspace(-1, 1, 6).requires_grad_()
        optimizer = kind([p], lr=1e-3, eps=eps, weight_decay=0.0, **options, **mode)
        for sizes in steps:
            p.grad = gradients(sizes)
            optimizer.step()
        weights.append((p.detach(), optimizer.state[p]))
    (ours, state), (theirs, expected) = weights
    torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=1e-7)
    for name in ("exp_avg", "exp_avg_sq"):
        torch.testing.assert_close(state[name], expected[name], rtol=1e-5, atol=0)


@pytest.mark.parametrize("kind", [AvaGrad, DelayedAdam])
@pytest.mark.parametrize("dead", [False, True])
@pytest.mark.parametrize("fused", [None, True])
def test_a_loaded_state_goes_on_as_if_nothing_had_happened(kind, dead, fused) -> None:
    """What is known of v is looked up again after loading, and must lead to the same bits."""

    def run(optimizer, p: Tensor, first: int, last: int) -> None:
        for step in range(first, last):
            p.grad = torch.randn(300, generator=torch.Generator().manual_seed(step)) * 1e-3
            if dead:
                p.grad[::3] = 0
            optimizer.step()

    whole = torch.ones(300, requires_grad=True)
    one = kind([whole], lr=0.1, eps=1e-8, fused=fused)
    run(one, whole, 0, 3)
    resumed = whole.detach().clone().requires_grad_()
    other = kind([resumed], lr=0.1, eps=1e-8, fused=fused)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    run(one, whole, 3, 6)
    run(other, resumed, 3, 6)
    assert torch.equal(whole, resumed)


def test_weights_that_come_alive_late_take_their_own_first_moment() -> None:
    p = torch.zeros(4, requires_grad=True)
    optimizer = DelayedAdam([p], lr=1e-3, eps=1e-8, betas=(0.0, 0.99))
    for grad in ([1.0, 0.0, 0.0, 1.0], [1.0, 5.0, 0.0, 1.0], [1.0, 5.0, 0.0, 1.0]):
        before = p.detach().clone()
        p.grad = torch.tensor(grad)
        optimizer.step()
    first_v = 0.01 * 25.0
    assert p[1].item() - before[1].item() == pytest.approx(-1e-3 * 5 / first_v**0.5, rel=1e-5)
    assert p[2].item() == 0
