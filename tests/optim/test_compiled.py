"""The loop for CPUs, really compiled, takes the steps of the loop as written."""

from __future__ import annotations

import pytest
import torch

from paretorch.optim import AvaGradW, _compiled


@pytest.mark.skipif(not _compiled.have_compiler(), reason="needs a C++ compiler")
@pytest.mark.usefixtures("compiled_for_real")
def test_compiled_and_not_compiled_agree() -> None:
    generator = torch.Generator().manual_seed(0)
    params = [torch.randn(n, generator=generator).requires_grad_() for n in (5000, 1, 37)]
    twins = [p.detach().clone().requires_grad_() for p in params]
    options = {"lr": 0.05, "eps": 1e-6, "weight_decay": 0.1}
    fast, slow = AvaGradW(params, fused=True, **options), AvaGradW(twins, **options)
    for step in range(4):
        for p, q in zip(params, twins, strict=True):
            q.grad = torch.randn(q.shape, generator=generator)
            q.grad[:5] *= step > 1
            p.grad = q.grad.clone()
        fast.param_groups[0]["lr"] = slow.param_groups[0]["lr"] = 0.05 / (step + 1)
        fast.step(), slow.step()
    for p, q in zip(params, twins, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-7)


def test_without_a_compiler_fused_still_steps(monkeypatch) -> None:
    monkeypatch.setattr("paretorch.optim._modes.have_compiler", lambda: False)
    p = torch.ones(3, requires_grad=True)
    p.grad = torch.ones(3)
    AvaGradW([p], fused=True).step()
    assert bool((p < 1).all())
