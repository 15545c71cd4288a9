"""The update on a CPU without a compiler: coordinates that are (nearly) dead, and small tensors that are stepped as one."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paretorch.optim import AnnealedAdam, AvaGrad, AvaGradW, DelayedAdam
from paretorch.optim.kernels import chunked

from .common import KINDS, build

GRADIENT_SIZES = [0.0, 1e-30, 1e-24, 1e-19, 1e-8, 1.0, 1e10]
"""Of gradients: none; those whose squares are 0, subnormal and small in fp32; usual and large ones."""
LENGTHS = [3, 0, 70_000, 40, 8192, 8193, 1]
step_of_sizes = st.lists(st.sampled_from(GRADIENT_SIZES), min_size=6, max_size=6)


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
def test_every_size_of_gradient_steps_as_with_one_tensor_at_a_time(steps, eps, kind, fused) -> None:
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
def test_a_loaded_state_continues_bit_for_bit(kind, dead, fused) -> None:
    """The lower bound of v is computed again after loading, which must lead to the same bits."""

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


def test_a_coordinate_whose_gradients_begin_late_uses_its_first_v() -> None:
    p = torch.zeros(4, requires_grad=True)
    optimizer = DelayedAdam([p], lr=1e-3, eps=1e-8, betas=(0.0, 0.99))
    for grad in ([1.0, 0.0, 0.0, 1.0], [1.0, 5.0, 0.0, 1.0], [1.0, 5.0, 0.0, 1.0]):
        before = p.detach().clone()
        p.grad = torch.tensor(grad)
        optimizer.step()
    first_v = 0.01 * 25.0
    assert p[1].item() - before[1].item() == pytest.approx(-1e-3 * 5 / first_v**0.5, rel=1e-5)
    assert p[2].item() == 0


def run_packed(kind, missing: bool, dtype: torch.dtype, monkeypatch, longest: int) -> list[Tensor]:
    monkeypatch.setattr(chunked, "MAX_PACKED", longest)
    generator = torch.Generator().manual_seed(0)
    params = [torch.randn(n, generator=generator).to(dtype).requires_grad_() for n in LENGTHS]
    optimizer = build(kind, params, lr=0.05, eps=1e-4, weight_decay=0.01, maximize=True)
    for step in range(7):
        for i, p in enumerate(params):
            grad = torch.randn(p.shape, generator=generator).to(dtype)
            grad[: p.numel() // 3] *= step > 2  # coordinates whose history begins late
            p.grad = None if missing and (step + i) % 3 == 0 else grad
        optimizer.step()
    state = [value for p in params for key, value in optimizer.state[p].items() if key != "step"]
    return [p.detach() for p in params] + state


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_packed_tensors_step_as_they_would_alone(kind, missing, dtype, monkeypatch) -> None:
    packed, alone = (run_packed(kind, missing, dtype, monkeypatch, longest) for longest in (1 << 13, 0))
    limits = {"rtol": 1e-12, "atol": 1e-14} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-6}
    if dtype == torch.bfloat16:
        limits = {"rtol": 0.01, "atol": 1e-5}
    for one, other in zip(packed, alone, strict=True):
        torch.testing.assert_close(one, other, **limits)


def test_which_tensors_are_packed(monkeypatch) -> None:
    monkeypatch.setattr(chunked, "CHUNK_PER_THREAD", 10_000)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    params = [torch.ones(n, requires_grad=True) for n in LENGTHS]
    params.append(torch.ones(5, dtype=torch.bfloat16, requires_grad=True))
    optimizer = build(KINDS[0], params)
    for p in params:
        p.grad = torch.ones_like(p)
    optimizer.step()
    packs = [[len(members) for members, _ in bucket._packs] for _, bucket in optimizer._buckets]
    assert packs == [[5], []], "tensors of up to 8,192 elements that fill one chunk, and none of another precision"
    for p in params[:2]:
        p.grad = None
    params[3].data = torch.ones(9_000)  # moved, and too large now
    params[3].grad = torch.ones(9_000)
    optimizer.state[params[3]] = {}
    optimizer.step()
    assert [len(members) for members, _ in optimizer._buckets[0][1]._packs] == [4]
