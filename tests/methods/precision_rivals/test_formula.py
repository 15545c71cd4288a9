"""Each rival against a few lines written from its paper, with no code of the library."""

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from paretorch import compress
from paretorch.edits import Scale
from paretorch.methods.precision.rivals import BSQ, DSQ, LSQ, PACT, SLB, DoReFa, LQNets, Uniform
from tests.contract.cases import MODELS, build
from tests.contract.loop import optimizer_of, train
from tests.contract.reference import quantized
from tests.decisions import Gradients, relaxations
from tests.methods.sparsity_rivals.test_formula import (
    STEPS,
    at_step,
    computed,
    decisions,
    gradients,
    originals,
    outer_gradients,
)


@pytest.mark.parametrize("bits", [0, 1, 2, 5])
def test_uniform_is_the_grid_of_the_thesis_straight_through(bits: int) -> None:
    _, plan, _, _ = at_step(Uniform(bits=bits, scale=-1), 4)
    outer = outer_gradients(plan)
    for w, value, grad, g in zip(originals(plan), computed(plan), gradients(plan, outer)[0], outer, strict=True):
        assert torch.equal(value, quantized(w.detach() * 2, torch.tensor(float(bits))) / 2)
        assert torch.equal(grad, g * (bits > 0))
        assert float(w.detach().abs().max()) <= (2 - 2.0 ** (1 - bits)) / 2


def test_uniform_scales_by_powers_of_two() -> None:
    network = build("linear")
    network[0].weight.data.mul_(40.0)
    plan = compress(network, Uniform(bits=2), steps=STEPS)
    rms = float(originals(plan)[0].detach().square().mean().sqrt())
    scale = 2.0 ** round(math.log2(rms))  # with two bits
    assert set((computed(plan)[0].detach().abs() / scale).unique().tolist()) <= {0.5, 1.5}
    assert plan.edits()[0] == Scale("0.weight", int(math.log2(scale)))


@pytest.mark.parametrize("bits", [2, 3])
@pytest.mark.parametrize("rescale", [False, True])
def test_dorefa_quantizes_the_squashed_weights(bits: int, rescale: bool) -> None:
    first = [w.detach().clone() for w in build("linear").parameters() if w.dim() > 1]
    _, plan, _, _ = at_step(DoReFa(bits=bits, rescale=rescale), 4)
    n = 2**bits - 1

    def printed(w: Tensor) -> Tensor:
        r = torch.tanh(w) / (2 * torch.tanh(w).abs().max()) + 0.5
        return 2 * torch.round(r * n) / n - 1

    outer = outer_gradients(plan)
    for w0, w, value, grad, g in zip(
        first, originals(plan), computed(plan), gradients(plan, outer)[0], outer, strict=True
    ):
        c = w0.std(correction=0) / printed(w0).std(correction=0) if rescale else 1.0
        torch.testing.assert_close(value, c * printed(w.detach()))
        w = w.detach().requires_grad_()
        t = torch.tanh(w)
        soft = c * t / t.abs().max()  # the gradient of 2 r − 1
        torch.testing.assert_close(grad, torch.autograd.grad(soft, w, g)[0])


def test_dorefa_with_one_bit_is_sign_times_mean() -> None:
    _, plan, _, _ = at_step(DoReFa(bits=1), 4)
    outer = outer_gradients(plan)
    for w, value, grad, g in zip(originals(plan), computed(plan), gradients(plan, outer)[0], outer, strict=True):
        torch.testing.assert_close(value, torch.sign(w) * w.abs().mean())
        assert torch.equal(grad, g)


@pytest.mark.parametrize(("bits", "first", "second"), [(2, 3.12, 2.064), (3, 7.509, 6.892)])
def test_pact_clips_by_the_moments(bits: int, first: float, second: float) -> None:
    _, plan, _, _ = at_step(PACT(bits=bits), 4)
    outer = outer_gradients(plan)
    for w, value, grad, g in zip(originals(plan), computed(plan), gradients(plan, outer)[0], outer, strict=True):
        w = w.detach()
        alpha = first * w.square().mean().sqrt() - second * w.abs().mean()
        levels = torch.linspace(-1, 1, 2**bits) * alpha
        nearest = levels[(w.flatten()[:, None] - levels).abs().argmin(1)].view(w.shape)
        torch.testing.assert_close(value, nearest)
        torch.testing.assert_close(grad, g * (w.abs() <= alpha))


@pytest.mark.parametrize("bits", [2, 3, 4, 5])
def test_the_clip_of_pact_is_nearly_the_best(bits: int) -> None:
    """The published coefficients, checked: on normal weights the error is within 3 % of the least."""
    torch.manual_seed(0)
    network = nn.Linear(200, 200, bias=False)
    nn.init.normal_(network.weight, std=0.1)
    w = network.weight.detach().clone()
    compress(network, PACT(bits=bits), steps=4)
    error = float((network.weight.detach() - w).square().mean())

    def at(alpha: float) -> float:
        step = 2 * alpha / (2**bits - 1)
        code = torch.round((w.clamp(-alpha, alpha) + alpha) / step)
        return float((code * step - alpha - w).square().mean())

    assert error <= 1.03 * min(at(0.1 * k / 50) for k in range(25, 250))


@pytest.mark.parametrize("group", ["layer", "channel"])
def test_lsq_values_and_the_gradient_of_the_step(group: str) -> None:
    bits, steps = 3, 6
    _, plan, _, _ = at_step(LSQ(bits=bits, group=group, optimizer=Gradients(lr=0.2)), steps)
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    outer = outer_gradients(plan)
    of_weights, of_steps = gradients(plan, outer)
    rate = (1 + math.cos(math.pi * steps / STEPS)) / 2
    for i, (w, s, value) in enumerate(zip(originals(plan), decisions(plan), computed(plan), strict=True)):
        w, s = w.detach(), s.detach()
        ratio = w / s
        torch.testing.assert_close(value, torch.round(ratio.clamp(low, high)) * s)
        inside = (ratio >= low) & (ratio <= high)
        torch.testing.assert_close(of_weights[i], outer[i] * inside)
        slope = torch.where(inside, torch.round(ratio) - ratio, ratio.clamp(low, high))
        g = 1 / math.sqrt(w.numel() / s.numel() * high)
        torch.testing.assert_close(of_steps[i], (outer[i] * slope).sum_to_size(s.shape) * g * rate)


def test_lsq_begins_with_the_papers_step_and_trains_it() -> None:
    _, plan, _, _ = at_step(LSQ(bits=4, lr=0.5), 0)
    for w, s in zip(originals(plan), decisions(plan), strict=True):
        assert float(s.detach()) == pytest.approx(2 * float(w.detach().abs().mean()) / math.sqrt(7), rel=1e-5)
    before = [float(s.detach()) for s in decisions(plan)]
    train(plan.model, plan, optimizer_of(plan), MODELS["linear"].batch(6), 3)
    assert all(float(s.detach()) != old for s, old in zip(decisions(plan), before, strict=True))


@pytest.mark.parametrize("bits", [1, 2, 3])
@pytest.mark.parametrize("group", ["layer", "channel"])
def test_lqnets_minimizes_the_quantization_error(bits: int, group: str) -> None:
    network, plan, _, _ = at_step(LQNets(bits=bits, group=group, momentum=0.8), 3, "conv2d")
    codes = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=bits)))
    old = [v.detach().clone() for v in decisions(plan)]
    outer = outer_gradients(plan)
    for grad, g in zip(gradients(plan, outer)[0], outer, strict=True):
        assert torch.equal(grad, g)
    plan.step()
    for w, v, new, value in zip(originals(plan), old, decisions(plan), computed(plan), strict=True):
        parts = w.detach().flatten(1) if group == "channel" else w.detach().reshape(1, -1)
        for row, own, after, got in zip(
            parts,
            v.reshape(bits, -1).T,
            new.detach().reshape(bits, -1).T,
            value.detach().view(parts.shape),
            strict=True,
        ):
            b = codes[(row[:, None] - codes @ own).abs().argmin(1)]
            best = torch.linalg.lstsq(b, row[:, None], driver="gelsd").solution[:, 0]
            full = int(torch.linalg.matrix_rank(b)) == bits
            if full:
                torch.testing.assert_close(after, 0.8 * own + 0.2 * best, rtol=1e-3, atol=1e-4)
            levels = codes @ after
            expected = levels[(row[:, None] - levels).abs().argmin(1)]
            assert float((got - expected).abs().max()) <= 1e-5
    assert network.training


def test_lqnets_lowers_the_error_of_normal_weights() -> None:
    """With no training, the basis goes to the least error of four free values with two bits."""
    torch.manual_seed(0)
    network = nn.Linear(100, 100, bias=False)
    nn.init.normal_(network.weight)
    w = network.weight.detach().clone()
    plan = compress(network, LQNets(bits=2, momentum=0.5), steps=100)
    errors = []
    for _ in range(60):
        errors.append(float((network.weight.detach() - w).square().mean()))
        plan.step()
    assert errors[-1] < errors[0]
    assert errors[-1] == pytest.approx(0.1175, abs=0.004), "the Lloyd-Max error of four levels on a normal"


@pytest.mark.parametrize("bits", [1, 2, 3])
def test_dsq_is_hard_forward_and_soft_backward(bits: int) -> None:
    _, plan, _, _ = at_step(DSQ(bits=bits, optimizer=Gradients(lr=1e-2)), 5)
    outer = outer_gradients(plan)
    of_weights, of_ranges = gradients(plan, outer)
    for i, (w, s, value) in enumerate(zip(originals(plan), decisions(plan), computed(plan), strict=True)):
        w, s = w.detach().clone().requires_grad_(), s.detach().clone().requires_grad_()
        lower, upper, alpha = s.flatten()
        delta = (upper - lower) / (2**bits - 1)
        levels = (lower + delta * torch.arange(2**bits)).detach()
        nearest = levels[(w.detach().flatten()[:, None] - levels).abs().argmin(1)].view(w.shape)
        torch.testing.assert_close(value.detach(), nearest)
        soft = []
        for x in w.flatten():
            if bool(x <= lower):
                soft.append(lower)
            elif bool(x >= upper):
                soft.append(upper)
            else:
                j = math.floor(float(((x - lower) / delta).detach()))
                middle = lower + (j + 0.5) * delta
                k = torch.log(2 / alpha - 1) / delta
                phi = torch.tanh(k * (x - middle)) / torch.tanh(0.5 * k * delta)
                soft.append(lower + delta * (j + (phi + 1) / 2))
        expected = torch.autograd.grad(torch.stack(soft).view(w.shape), [w, s], outer[i])
        torch.testing.assert_close(of_weights[i], expected[0], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(of_ranges[i], expected[1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("bits", [1, 2])
def test_slb_averages_over_values_then_takes_one(bits: int) -> None:
    steps = 6
    network, plan, _, _ = at_step(SLB(bits=bits, lr=0.05, anneal=0.5, final_temperature=0.1), steps)
    tau = 0.1 ** (steps / (0.5 * STEPS))
    values = torch.linspace(-1, 1, 2**bits)
    scales = [float(own.c) for own in relaxations(plan.model)]
    for s, c, w, value in zip(decisions(plan), scales, originals(plan), computed(plan), strict=True):
        p = torch.exp(s.detach() / tau) / torch.exp(s.detach() / tau).sum(0)
        expected = c * torch.einsum("j...,j->...", p, values)
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(w, expected, rtol=1e-4, atol=1e-6)
    plan.harden()
    for s, c, value in zip(decisions(plan), scales, computed(plan), strict=True):
        torch.testing.assert_close(value, c * values[s.detach().argmax(0)])
    assert network.training


def test_slb_begins_near_the_weights() -> None:
    before = build("linear")[0].weight.detach()
    network, _, _, _ = at_step(SLB(bits=2), 0)
    after = network[0].weight.detach()
    assert float(torch.corrcoef(torch.stack([before.flatten(), after.flatten()]))[0, 1]) > 0.98
    assert float((before - after).norm() / before.norm()) < 0.35


def test_bsq_rounds_the_sum_of_planes_straight_through() -> None:
    bits, steps = 3, 4
    _, plan, _, _ = at_step(BSQ(bits=bits, penalty=0.0, adjustments=1, optimizer=Gradients(lr=0.5)), steps)
    outer = outer_gradients(plan)
    _, given = gradients(plan, outer)
    rate = (1 + math.cos(math.pi * steps / STEPS)) / 2
    for i, (own, value) in enumerate(zip(relaxations(plan.model), computed(plan), strict=True)):
        planes, delta = own.decision.detach(), float(own.delta)
        assert float(planes.min()) >= 0.0
        assert float(planes.max()) <= 2.0
        assert bool(((planes != 0) & (planes != 1)).any()), "planes are trained"
        x = sum(2**b * (planes[b] - planes[bits + 1 + b]) for b in range(bits + 1))
        torch.testing.assert_close(value, delta * torch.round(x))
        for b in range(bits):
            torch.testing.assert_close(given[i][b], outer[i] * delta * 2**b * rate)
            torch.testing.assert_close(given[i][bits + 1 + b], -outer[i] * delta * 2**b * rate)


def test_bsq_price_is_the_reweighed_group_lasso() -> None:
    plan = compress(build("linear"), BSQ(bits=3, penalty=0.7, momentum=0.0, lr=0.01), steps=STEPS)
    before = [s.detach().clone().requires_grad_() for s in decisions(plan)]
    total = sum(s[0].numel() for s in before)
    price = torch.zeros(())
    for s in before:
        for b in range(3):
            plane = torch.stack([s[b], s[4 + b]])
            price = price + 0.7 * s[0].numel() * 3 / total * plane.square().sum().sqrt()
    assert 0.7 * plan.metrics()["lasso"] == pytest.approx(price.item(), rel=1e-5)
    price.backward()
    plan.step()
    for old, new in zip(before, decisions(plan), strict=True):
        torch.testing.assert_close(new, (old - 0.01 * old.grad).detach().clamp(0, 2), rtol=1e-4, atol=1e-6)


def test_bsq_drops_empty_planes_and_keeps_the_values() -> None:
    network = nn.Linear(4, 2, bias=False)
    network.weight.data = torch.tensor([[0.0, 2, 4, -6], [15, 0, -2, 4]])
    plan = compress(network, BSQ(bits=4), steps=4)
    (r,) = relaxations(network)
    assert plan.metrics()["bits"] == 4
    s = r.decision.data.view(2, 5, 2, 4)
    s[:, 0] = 0.0  # the lowest plane of 15
    s[:, 3] = 0.0  # and the highest: 15 becomes 6
    r.hold(torch.tensor(True))
    plan.refresh()
    assert r.active.flatten().tolist() == [0, 1, 1, 0, 0]
    assert plan.metrics()["bits"] == 2
    assert network.weight.detach().tolist() == [[0, 2, 4, -6], [6, 0, -2, 4]]
    assert set(r.decision.detach().unique().tolist()) == {0.0, 1.0}
    s[0, 2, 0, 0] = 1.3  # 1.3 · 4 = 5.2 is nearest to 6 on the grid of twos
    plan.refresh()
    assert network.weight[0, 0].item() == 6.0
    s[0, 1:3, 0, 1] = 2.0  # 2 · 2 + 2 · 4 = 12 carries into a plane above
    r.hold(torch.tensor(True))
    plan.refresh()
    assert plan.metrics()["bits"] == 3
    assert network.weight[0, 1].item() == 12.0


def test_bsq_gets_narrower_under_a_price() -> None:
    network, plan, optimizer, x = at_step(BSQ(bits=5, penalty=2.0, adjustments=4, lr=0.5), STEPS)
    assert plan.metrics()["bits"] < 4
    plan.harden(optimizer)
    bits = [float(r.active.sum()) for r in relaxations(network)]
    train(network, plan, optimizer, x, 3)
    for r, value, own in zip(relaxations(network), computed(plan), bits, strict=True):
        assert len(value.detach().abs().unique()) <= 2**own
        assert float(r.active.sum()) == own
