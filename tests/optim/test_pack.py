"""Small tensors stepped as one take the steps that they would take alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from paretorch.optim.kernels import pieces as _pieces

from .test_states_and_hooks import KINDS, build

SIZES = [3, 0, 70_000, 40, 8192, 8193, 1]


def run(kind, missing: bool, dtype: torch.dtype, monkeypatch, small: int) -> list[Tensor]:
    monkeypatch.setattr(_pieces, "SMALL", small)
    generator = torch.Generator().manual_seed(0)
    params = [torch.randn(n, generator=generator).to(dtype).requires_grad_() for n in SIZES]
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
def test_packed_is_alone(kind, missing, dtype, monkeypatch) -> None:
    packed, alone = (run(kind, missing, dtype, monkeypatch, small) for small in (1 << 13, 0))
    limits = {"rtol": 1e-12, "atol": 1e-14} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-6}
    if dtype == torch.bfloat16:
        limits = {"rtol": 0.01, "atol": 1e-5}
    for one, other in zip(packed, alone, strict=True):
        torch.testing.assert_close(one, other, **limits)


def test_what_is_packed(monkeypatch) -> None:
    monkeypatch.setattr(_pieces, "PIECE", 10_000)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    params = [torch.ones(n, requires_grad=True) for n in SIZES]
    params.append(torch.ones(5, dtype=torch.bfloat16, requires_grad=True))
    optimizer = build(KINDS[0], params)
    for p in params:
        p.grad = torch.ones_like(p)
    optimizer.step()
    packs = [[len(members) for members, _ in bucket._packs] for _, bucket in optimizer._buckets]
    assert packs == [[5], []], "tensors of up to 8,192 elements that fill one piece, and none of another precision"
    for p in params[:2]:
        p.grad = None
    params[3].data = torch.ones(9_000)  # moved, and too large now
    params[3].grad = torch.ones(9_000)
    optimizer.state[params[3]] = {}
    optimizer.step()
    assert [len(members) for members, _ in optimizer._buckets[0][1]._packs] == [4]
