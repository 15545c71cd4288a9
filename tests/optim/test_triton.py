"""The kernel against the torch implementation: on a GPU if there is one, else in Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported
pytest.importorskip("triton")

from paretorch.optim import AnnealedAdam, AvaGrad, AvaGradW, DelayedAdam, base  # noqa: E402
from paretorch.optim.hyperparameters import Hyperparameters  # noqa: E402
from paretorch.optim.kernels import choose_implementation, triton  # noqa: E402
from paretorch.optim.kernels.parameter import ParameterView, new_state  # noqa: E402

KINDS = [AvaGrad, AvaGradW, DelayedAdam, AnnealedAdam]
SHAPES = [(11, 9), (5,), (300,), (1,), (0,), (3, 2, 3, 3)]


@pytest.fixture(autouse=True)
def _kernel_everywhere(monkeypatch):
    """Make `fused=True` use the kernel, also on a CPU, with blocks so small that every path of it is taken."""

    def choose(group, param, name):
        return "triton" if group["fused"] else choose_implementation(group, param, name)

    monkeypatch.setattr(base, "choose_implementation", choose)
    if DEVICE == "cpu":
        monkeypatch.setattr(triton, "BLOCK", 64)
        monkeypatch.setattr(triton, "MAX_CHUNK", 256)
        monkeypatch.setattr(triton, "PROGRAMS", 8)


def build(kind, params, **options):
    if kind is AnnealedAdam:
        options["steps"] = 50
    return kind(params, lr=0.05, betas=(0.8, 0.95), weight_decay=0.02, **options)


def run(kind, steps: int, dtype: torch.dtype = torch.float32, **options) -> tuple[list[Tensor], object]:
    generator = torch.Generator().manual_seed(0)
    params = [torch.randn(s, generator=generator).to(DEVICE, dtype).requires_grad_() for s in SHAPES]
    optimizer = build(kind, [{"params": params[:3]}, {"params": params[3:], "lr": 0.01}], **options)
    for step in range(steps):
        for i, p in enumerate(params):
            grad = torch.randn(p.shape, generator=generator)
            grad.view(-1)[:2] *= step > 1
            p.grad = None if i == 1 and step == 2 else grad.to(DEVICE, dtype)
        optimizer.step()
    return [p.detach() for p in params], optimizer


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("eps", "maximize"), [(1e-16, False), (1e-8, True), (0.1, False)])
def test_same_as_torch_operations(kind, eps, maximize) -> None:
    fast, _ = run(kind, 4, fused=True, eps=eps, maximize=maximize)
    slow, _ = run(kind, 4, foreach=True, eps=eps, maximize=maximize)
    for a, b in zip(fast, slow, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_parameters(dtype) -> None:
    fast, _ = run(AvaGrad, 2, dtype=dtype, fused=True)
    slow, _ = run(AvaGrad, 2, dtype=dtype, foreach=True)
    for a, b in zip(fast, slow, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=1e-2)  # the interpreter truncates, a GPU rounds


def test_stochastic_rounding_uses_the_same_random_bits() -> None:
    _, a = run(AvaGrad, 1, fused=True, state_dtype=torch.bfloat16)
    _, b = run(AvaGrad, 1, foreach=True, state_dtype=torch.bfloat16)
    differing = total = 0
    for p, q in zip(a.param_groups[0]["params"], b.param_groups[0]["params"], strict=True):
        differing += int((a.state[p]["exp_avg_sq"] != b.state[q]["exp_avg_sq"]).sum())
        total += p.numel()
    assert differing <= total * 0.02, "the last bit of fp32 may differ before rounding, the random bits may not"


def test_runs_repeat_bit_for_bit() -> None:
    first, _ = run(AvaGrad, 3, fused=True)
    second, _ = run(AvaGrad, 3, fused=True)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_misaligned_tensors() -> None:
    base = torch.randn(131, device=DEVICE)
    params = [base[1:].clone()[1:].requires_grad_(), torch.randn(64, device=DEVICE).requires_grad_()]
    twins = [p.detach().clone().requires_grad_() for p in params]
    fast, slow = build(AvaGrad, params, fused=True), build(AvaGrad, twins, foreach=True)
    for _ in range(3):
        for p, q in zip(params, twins, strict=True):
            q.grad = torch.randn_like(q)
            p.grad = q.grad.clone()
        fast.step(), slow.step()
    for p, q in zip(params, twins, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


def test_a_scaler_may_skip_the_step() -> None:
    p = torch.ones(100, device=DEVICE, requires_grad=True)
    twin = torch.ones(100, device=DEVICE, requires_grad=True)
    scaled, plain = build(AvaGrad, [p], fused=True), build(AvaGrad, [twin], fused=True)
    scaled.grad_scale = torch.full((1,), 1024.0, device=DEVICE)
    for overflow in (1.0, 0.0, 1.0, 0.0):
        grad = torch.linspace(-1, 2, 100, device=DEVICE)
        before = p.detach().clone()
        p.grad, twin.grad = grad * 1024, grad
        scaled.found_inf = torch.full((1,), overflow, device=DEVICE)
        scaled.step()
        if overflow:
            assert torch.equal(p.detach(), before)
        else:
            plain.step()
            torch.testing.assert_close(p, twin)
    assert float(scaled.state[p]["step"]) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_hyperparameters_on_the_device(kind) -> None:
    moved = []
    for wrap in (float, lambda x: torch.tensor(float(x), device=DEVICE)):
        p = torch.linspace(-1, 1, 70, device=DEVICE)
        state = new_state(p, torch.bfloat16)
        bucket = triton.TritonBucket([ParameterView(p, state, 0)], seed=3)
        for step in (1, 2):
            hyper = Hyperparameters(wrap(0.1), 0.9, 0.99, wrap(0.01 * step), 0.01, False, kind.rule)
            total = torch.tensor([20.0, 5.0], dtype=torch.float64, device=DEVICE) if kind.rule.normalised else None
            bucket.update([torch.linspace(0, step, 70, device=DEVICE)], hyper, total, wrap(step))
        moved.append((p, state["exp_avg"].float()))
    torch.testing.assert_close(moved[0], moved[1], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("groups", [1, 2])
def test_the_kernel_counts_the_steps(kind, groups) -> None:
    """With `capturable` the count is on the device; a single bucket counts by itself, several do not."""
    params = [torch.ones(70, device=DEVICE, requires_grad=True) for _ in range(2)]
    split = [{"params": params}] if groups == 1 else [{"params": [p]} for p in params]
    twins = [p.detach().clone().requires_grad_() for p in params]
    counted, plain = build(kind, split, fused=True, capturable=True), build(kind, twins, foreach=True)
    for step in range(1, 4):
        for p, q in zip(params, twins, strict=True):
            q.grad = torch.linspace(-1, step, 70, device=DEVICE)
            p.grad = q.grad.clone()
        counted.step(), plain.step()
        assert float(counted.state[params[1]]["step"]) == step
    for p, q in zip(params, twins, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


def test_more_programs_than_a_block_adds_up() -> None:
    params = [torch.full((3,), 0.5, device=DEVICE, requires_grad=True) for _ in range(150)]
    twins = [p.detach().clone().requires_grad_() for p in params]
    fast, slow = build(AvaGrad, params, fused=True), build(AvaGrad, twins, foreach=True)
    for step in range(3):
        for i, (p, q) in enumerate(zip(params, twins, strict=True)):
            q.grad = None if i == 149 and step == 1 else torch.full((3,), 0.01 * (i + 1), device=DEVICE)
            p.grad = None if q.grad is None else q.grad.clone()
        fast.step(), slow.step()
    ((_, bucket),) = fast._buckets
    torch.testing.assert_close(bucket.eta_sums(), bucket._sums.sum(1))
    assert bucket.eta_sums()[1] == 450
    assert int(bucket._ticket) == 0
    for p, q in zip(params, twins, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("kind", KINDS)
def test_replayed_from_a_graph(kind) -> None:
    p = torch.randn(3000, device=DEVICE, requires_grad=True)
    twin = p.detach().clone().requires_grad_()
    lr = torch.tensor(0.05, device=DEVICE)
    options = {"steps": 50} if kind is AnnealedAdam else {}
    graphed = kind([p], lr=lr, capturable=True, **options)
    eager = kind([twin], lr=0.05, **options)
    source = torch.randn(3000, device=DEVICE)
    for _ in range(2):
        p.grad, twin.grad = source.clone(), source.clone()
        graphed.step(), eager.step()
    p.grad = source.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        graphed.step()
    for i in range(4):
        grad = torch.randn(3000, device=DEVICE)
        lr.fill_(0.05 / (i + 1))
        eager.param_groups[0]["lr"] = 0.05 / (i + 1)
        p.grad.copy_(grad)
        twin.grad = grad
        graph.replay()
        eager.step()
        torch.testing.assert_close(p, twin, rtol=1e-5, atol=1e-7)
