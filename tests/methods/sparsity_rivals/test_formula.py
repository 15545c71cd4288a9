"""Each rival against a few lines written from its paper, with no code of the library."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from paretorch import Plan, compress
from paretorch.core.method import Method
from paretorch.methods.sparsity.rivals import (
    DNW,
    ST3,
    STR,
    GradualMagnitude,
    HardConcrete,
    MagnitudePruning,
    NetworkSlimming,
    StochasticSparsification,
)
from tests.contract.cases import MODELS, build
from tests.contract.loop import optimizer_of, train
from tests.contract.reference import noise
from tests.decisions import Gradients, relaxations, relaxed

STEPS = 20


def at_step(method: Method, steps: int, model: str = "linear") -> tuple[nn.Module, Plan, torch.optim.Optimizer, Tensor]:
    network = build(model)
    plan = compress(network, method, steps=STEPS)
    optimizer, x = optimizer_of(plan), MODELS[model].batch(6)
    train(network, plan, optimizer, x, steps)
    return network, plan, optimizer, x


def originals(plan: Plan) -> list[Tensor]:
    return [own.latent for own in relaxed(plan.model).values()]


def computed(plan: Plan) -> list[Tensor]:
    return [plan.model.get_parameter(name) for name in relaxed(plan.model)]


def decisions(plan: Plan) -> list[Tensor]:
    return [own.decision for own in relaxations(plan.model)]


def largest(weights: list[Tensor], kept: float, scope: str = "global") -> list[Tensor]:
    """1 for the ⌊kept · n⌉ largest |w| of the network, or of each layer."""
    if scope == "layer":
        return [largest([w], kept)[0] for w in weights]
    flat = torch.cat([w.detach().abs().flatten() for w in weights])
    mask = torch.zeros_like(flat)
    mask[flat.topk(round(kept * len(flat))).indices] = 1.0
    return [part.view(w.shape) for part, w in zip(mask.split([w.numel() for w in weights]), weights, strict=True)]


def gradients(plan: Plan, outer: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """What weights and decisions are given, in a copy of the plan, for gradients ∂L/∂W that a backward pass leaves in the layers.

    Those of decisions are noted where `Gradients` is the method's optimizer, and include the price.
    """
    twin = Plan.of(copy.deepcopy(plan.model))
    weights = computed(twin)
    for weight, gradient in zip(weights, outer, strict=True):
        weight.grad = gradient.clone()
    torch.optim.SGD(twin.param_groups(), lr=0.0).step()
    of_weights = [weight.grad.clone() for weight in weights]
    twin.step()
    optimizer = twin.methods()[0].optimizer
    return of_weights, optimizer.found if isinstance(optimizer, Gradients) else []


def outer_gradients(plan: Plan) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(w.shape, generator=generator) for w in computed(plan)]


@pytest.mark.parametrize("scope", ["global", "layer"])
def test_mp_is_dense_then_keeps_the_largest(scope: str) -> None:
    _, plan, _, _ = at_step(MagnitudePruning(target=0.7, scope=scope), 8)
    for w, value in zip(originals(plan), computed(plan), strict=True):
        assert torch.equal(w, value)
    plan.harden()
    for w, value, m in zip(originals(plan), computed(plan), largest(originals(plan), 0.3, scope), strict=True):
        assert torch.equal(value, w * m)


@pytest.mark.parametrize(("begin", "end", "every"), [(0.0, 1.0, 5), (0.25, 0.8, 3)])
def test_gmp_follows_the_cubic_schedule(begin: float, end: float, every: int) -> None:
    method = GradualMagnitude(target=0.8, initial=0.1, begin=begin, end=end, every=every)
    network, plan, optimizer, x = at_step(method, 0)
    t0, n = int(begin * STEPS), int((end - begin) * STEPS) // every
    m = largest(originals(plan), 1 - 0.1)
    for t in range(STEPS + 1):
        if t >= t0 and (t - t0) % every == 0 and t <= t0 + n * every:
            s_t = 0.8 + (0.1 - 0.8) * (1 - (t - t0) / (n * every)) ** 3
            m = largest(originals(plan), 1 - s_t)
        for w, value, mask in zip(originals(plan), computed(plan), m, strict=True):
            assert torch.equal(value, w * mask), f"step {t}"
        train(network, plan, optimizer, x, 1)


def test_gmp_dropped_weights_get_no_gradient_but_may_come_back() -> None:
    network, plan, optimizer, x = at_step(GradualMagnitude(target=0.5, end=0.5, every=1), 6)
    gone = [value == 0 for value in computed(plan)]
    for mask, gradient in zip(gone, gradients(plan, outer_gradients(plan))[0], strict=True):
        assert torch.equal(gradient == 0, mask)
    with torch.no_grad():
        originals(plan)[0][gone[0]] = 5.0
    train(network, plan, optimizer, x, 1)
    assert bool((computed(plan)[0][gone[0]] != 0).all())


@pytest.mark.parametrize("scope", ["global", "layer"])
def test_dnw_masks_forward_and_trains_everything(scope: str) -> None:
    _, plan, _, _ = at_step(DNW(target=0.7, scope=scope), 0)
    for w, value, m in zip(originals(plan), computed(plan), largest(originals(plan), 0.3, scope), strict=True):
        assert torch.equal(value, w * m), "from the first step on"
    _, plan, _, _ = at_step(DNW(target=0.7, scope=scope), 5)
    for w, value, m in zip(originals(plan), computed(plan), largest(originals(plan), 0.3, scope), strict=True):
        torch.testing.assert_close(value, w * m)
    outer = outer_gradients(plan)
    for gradient, expected in zip(gradients(plan, outer)[0], outer, strict=True):
        assert torch.equal(gradient, expected)


@pytest.mark.parametrize("sigma", [False, True])
@pytest.mark.parametrize("rescale", [False, True])
def test_st3_soft_thresholds_and_rescales(sigma: bool, rescale: bool) -> None:
    t, target = 6, 0.8
    _, plan, _, _ = at_step(ST3(target=target, sigma=sigma, rescale=rescale, anneal=1.0), t, "conv2d")
    weights = [w.detach() for w in originals(plan)]
    scales = [1 / math.sqrt(sum(w.shape)) if sigma else 1.0 for w in weights]
    s_t = target - target * (1 - t / STEPS) ** 3
    ranked = torch.cat([(w.abs() / sd).flatten() for w, sd in zip(weights, scales, strict=True)]).sort().values
    gone = round(s_t * len(ranked))
    tau = float(ranked[gone - 1] + ranked[gone]) / 2
    outer = outer_gradients(plan)
    for w, sd, value in zip(weights, scales, computed(plan), strict=True):
        expected = torch.sign(w) * (w.abs() - tau * sd).clamp(min=0)
        if rescale:
            for channel in range(len(w)):
                size = w[channel].abs()
                ratio = (size * (size > tau * sd)).mean() / size.mean()
                expected[channel] *= 1.01 / (ratio + 0.01)
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-6)
    for gradient, expected in zip(gradients(plan, outer)[0], outer, strict=True):
        assert torch.equal(gradient, expected), "straight through, dropped weights too"


def test_st3_rounding_changes_nothing_once_the_target_is_reached() -> None:
    network, plan, _, x = at_step(ST3(target=0.6, anneal=0.5), STEPS, "conv2d")
    soft = network.eval()(x)
    plan.harden()
    torch.testing.assert_close(network(x), soft, rtol=1e-4, atol=1e-5)


def test_str_value_and_gradients() -> None:
    _, plan, _, _ = at_step(STR(init=-2.5, optimizer=Gradients(lr=0.1)), 4)
    outer = outer_gradients(plan)
    of_weights, of_decisions = gradients(plan, outer)
    for i, (w, s, value) in enumerate(zip(originals(plan), decisions(plan), computed(plan), strict=True)):
        g = 1 / (1 + math.exp(-float(s.detach())))
        left = w.detach().abs() > g
        torch.testing.assert_close(value, torch.where(left, w - g * torch.sign(w), 0.0))
        torch.testing.assert_close(of_weights[i], outer[i] * left)
        slope = -g * (1 - g) * (outer[i] * torch.sign(w.detach()) * left).sum()
        torch.testing.assert_close(of_decisions[i].flatten()[0], slope, rtol=1e-4, atol=1e-6)


def test_str_weight_decay_raises_the_thresholds() -> None:
    network = build("linear")
    method = STR(init=-8.0, decay=0.1, lr=0.1, momentum=0.0)
    plan = compress(network, method, steps=STEPS)
    for _ in range(5):
        plan.step()
    for s in decisions(plan):
        assert float(s.detach()) == pytest.approx(-8.0 * (1 - 0.1 * 0.1) ** 5, rel=1e-5)


def test_hard_concrete_gates_price_and_test_time() -> None:
    gamma, zeta, beta = -0.1, 1.1, 2 / 3
    network, plan, _, _ = at_step(HardConcrete(penalty=0.5, open_at_start=0.6), 5)
    step = int(plan.metrics()["step"])
    price = 0.0
    for name, w, s, value in zip(relaxed(plan.model), originals(plan), decisions(plan), computed(plan), strict=True):
        u = (noise(0, name, step, w.shape) + 1) / 2
        stretched = torch.sigmoid((torch.log(u) - torch.log(1 - u) + s) / beta) * (zeta - gamma) + gamma
        torch.testing.assert_close(value, w * stretched.clamp(0, 1), rtol=1e-3, atol=1e-5)
        price += 0.5 * float(torch.sigmoid(s.detach() - beta * math.log(-gamma / zeta)).sum())
    assert float(plan.penalty()) == pytest.approx(price, rel=1e-5)
    network.eval()
    for w, s, value in zip(originals(plan), decisions(plan), computed(plan), strict=True):
        torch.testing.assert_close(value, w * (torch.sigmoid(s) * (zeta - gamma) + gamma).clamp(0, 1))
    soft = [value.detach().clone() for value in computed(plan)]
    plan.harden()
    assert all(torch.equal(a, b) for a, b in zip(soft, computed(plan), strict=True)), "test-time gates stay"


@pytest.mark.parametrize("method", [HardConcrete(penalty=0.3), NetworkSlimming(target=0.5, penalty=0.3)])
def test_the_price_moves_decisions_by_its_gradient(method: Method) -> None:
    plan = compress(build("linear"), method, steps=STEPS)
    before = [s.detach().clone().requires_grad_() for s in decisions(plan)]
    if isinstance(method, HardConcrete):
        total = sum(torch.sigmoid(s - 2 / 3 * math.log(0.1 / 1.1)).sum() for s in before)
    else:
        total = sum(s.abs().sum() for s in before)
    (0.3 * total).backward()
    plan.step()
    for old, new in zip(before, decisions(plan), strict=True):
        torch.testing.assert_close(new, old.detach() - method.lr * old.grad)


def test_slimming_scales_and_drops_the_smallest_scales() -> None:
    _, plan, _, _ = at_step(NetworkSlimming(target=0.7, penalty=1e-2), 6)
    scales = [s.detach().clone() for s in decisions(plan)]
    for w, s, value in zip(originals(plan), scales, computed(plan), strict=True):
        assert torch.equal(value, w * s)
    plan.harden()
    for w, s, value, m in zip(originals(plan), scales, computed(plan), largest(scales, 0.3), strict=True):
        assert torch.equal(value, w * s * m)


def test_stochastic_draws_bernoulli_masks_straight_through() -> None:
    network, plan, _, _ = at_step(StochasticSparsification(init=0.3, penalty=0.1, optimizer=Gradients(lr=2.0)), 5)
    step = int(plan.metrics()["step"])
    outer = outer_gradients(plan)
    _, given = gradients(plan, outer)
    price = 0.0
    for i, (name, w, s, value) in enumerate(
        zip(relaxed(plan.model), originals(plan), decisions(plan), computed(plan), strict=True)
    ):
        p, u = torch.sigmoid(s.detach()), (noise(0, name, step, w.shape) + 1) / 2
        m = (1 - u < p).float()
        torch.testing.assert_close(value, w * m)
        torch.testing.assert_close(given[i], (outer[i] * w.detach() + 0.1) * p * (1 - p))
        price += 0.1 * float(p.sum())
    assert float(plan.penalty()) == pytest.approx(price, rel=1e-5)
    network.eval()
    for w, s, value in zip(originals(plan), decisions(plan), computed(plan), strict=True):
        torch.testing.assert_close(value, w * torch.sigmoid(s))
