"""The network computes what section 5.4 says, written out here with no code of the library."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from paretorch import SMOLActivations, compress
from paretorch.edits.quantize_activation import QuantizedActivation, steps_of
from paretorch.methods.precision.activations import ActivationPrecision
from tests.contract.loop import optimizer_of, train
from tests.contract.reference import noise
from tests.decisions import copies, decisions
from tests.methods.activations.nets import batch, build, run_to


def perturbed(u: Tensor, s: Tensor, low: float, high: float, name: str, step: int) -> Tensor:
    """clip(u) + M/2 σ(s) ε."""
    epsilon = noise(0, name, step, u.shape)
    return u.clamp(low, high) + (high - low) / 2 / (1 + torch.exp(-s)) * epsilon


def nearest(u: Tensor, bits: Tensor, low: float, high: float) -> Tensor:
    """The nearest of 2^p equally spaced values from low to high, by trying each."""
    flat, out = u.flatten().double(), []
    for value, p in zip(flat.tolist(), bits.expand(u.shape).flatten().tolist(), strict=True):
        grid = [low + k * (high - low) / (2**p - 1) for k in range(2**p)]
        out.append(min(grid, key=lambda one: abs(one - value)))
    return torch.tensor(out).float().view(u.shape)


def relaxation(network: nn.Module, name: str) -> ActivationPrecision:
    found = network.get_submodule(f"{name}.paretorch_activation.activations")
    assert isinstance(found, ActivationPrecision)
    return found


@pytest.mark.parametrize("steps", [0, 5])
@pytest.mark.parametrize(
    ("method", "shape"), [("position", (4, 4, 4)), ("channel", (4, 1, 1)), ("layer", (1, 1, 1)), ("beside", (4, 1, 1))]
)
def test_noise_while_searching(method: str, shape: tuple[int, ...], steps: int) -> None:
    network, plan, optimizer = run_to(method, "start")
    train(network, plan, optimizer, batch(), steps)
    own = relaxation(network, "relu")
    assert own.decision.shape == shape
    alpha = float(own.alpha)
    u = 2 * torch.randn(3, 4, 4, 4) + 3
    expected = perturbed(u.relu(), own.decision.detach(), 0.0, alpha, "relu", steps)
    torch.testing.assert_close(network.relu(u.clone()), expected, rtol=1e-5, atol=1e-5)
    v = torch.randn(3, 4)
    tanh = relaxation(network, "tanh").decision.detach().view(-1).expand(4)
    torch.testing.assert_close(network.tanh(v), perturbed(v.tanh(), tanh, -1, 1, "tanh", steps), rtol=1e-5, atol=1e-5)
    network.eval()
    assert torch.equal(network.relu(u.clone()), u.clamp(0.0, alpha))
    assert torch.equal(network.tanh(v), v.tanh())


@pytest.mark.parametrize("method", ["position", "channel", "layer", "network", "block"])
def test_levels_once_hard(method: str) -> None:
    network, plan, _ = run_to(method, "hard")
    network.eval()
    own = relaxation(network, "relu")
    real = 1 + torch.log2(1 + torch.exp(-own.decision.detach().double()))
    bits = torch.floor(real)
    if method == "block":
        bits = bits.repeat_interleave(2, 0)
    u = torch.rand(2, 4, 4, 4) * 10 - 1
    bits = bits.view((1,) * 3) if bits.numel() == 1 else bits
    expected = nearest(u, bits.int(), 0.0, float(own.alpha))
    torch.testing.assert_close(network.relu(u.clone()), expected, rtol=1e-5, atol=1e-5)
    assert plan.is_hard


def test_gradient_of_s_is_that_of_the_formula() -> None:
    network, _, _ = run_to("position", "start")
    own = relaxation(network, "relu")
    u = torch.rand(3, 4, 4, 4) * 4
    weight = torch.randn(3, 4, 4, 4)
    (network.relu(u.clone()) * weight).sum().backward()
    s, alpha = own.decision.detach(), float(own.alpha)
    sigma = 1 / (1 + torch.exp(-s))
    expected = (weight * alpha / 2 * noise(0, "relu", 0, u.shape)).sum(0) * sigma * (1 - sigma)
    torch.testing.assert_close(own.decision.grad, expected, rtol=1e-4, atol=1e-5)


def test_gradients_once_hard_are_pacts() -> None:
    network, _, _ = run_to("position", "hard")
    own = relaxation(network, "relu")
    alpha = float(own.alpha)
    u = torch.tensor([-1.0, 0.3 * alpha, 0.7 * alpha, 2.0 * alpha]).view(4, 1, 1, 1).repeat(1, 4, 4, 4).requires_grad_()
    own.alpha.grad = None
    network.relu(u * 1.0).sum().backward()
    assert u.grad[:, 0, 0, 0].tolist() == [0.0, 1.0, 1.0, 0.0]
    assert float(own.alpha.grad) == 64.0  # of the clipped values, one each
    assert own.decision.grad.abs().sum() == 0


def test_price_is_lambda_times_the_bits() -> None:
    network = build()
    plan = compress(network, SMOLActivations(penalty=0.01, init_bits=5.0), steps=5, example=batch())
    count = 64 + 4 + 6
    assert float(plan.penalty()) == pytest.approx(0.01 * count * 5.0, rel=1e-5)
    before = copies(decisions(network))
    plan.step()  # no loss: the price alone moves s, upwards
    after = decisions(network)
    assert all(bool((b > a).all()) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("group", ["weight", "channel", "layer"])
def test_target_is_met(group: str) -> None:
    network = build()
    plan = compress(network, SMOLActivations(target_bits=3.0, group=group), steps=60, example=batch())
    train(network, plan, optimizer_of(plan), batch(), 60)
    plan.harden()
    share = {"weight": 1, "channel": 16, "layer": 64}[group] / 74
    assert abs(plan.metrics()["activation_bits"] - 3.0) <= max(0.05, 5 * share / 2)


def test_alpha_is_trained_by_the_users_optimizer_with_its_own_decay() -> None:
    network = build()
    plan = compress(network, SMOLActivations(target_bits=3.0, alpha=0.5, alpha_decay=0.25), steps=5, example=batch())
    weights, ranges = plan.param_groups(weight_decay=1e-3)
    own = relaxation(network, "relu")
    assert (weights["weight_decay"], ranges["weight_decay"]) == (1e-3, 0.25)
    assert [id(p) for p in ranges["params"]] == [id(own.alpha)]
    assert all(p is not own.alpha and p is not own.decision for p in weights["params"])
    train(network, plan, optimizer_of(plan), batch(), 2)
    assert float(own.alpha) != 0.5


def test_fit_starts_alpha_at_the_examples_largest_value() -> None:
    network, x = build(), batch()
    first = network.first(x).relu()
    largest = max(float(first.max()), float((first + network.second(first)).relu().max()))
    compress(network, SMOLActivations(target_bits=3.0, alpha="fit"), steps=5, example=x)
    assert float(relaxation(network, "relu").alpha) == pytest.approx(largest)


def test_small_alpha_keeps_its_gradient() -> None:
    network, _, _ = run_to("position", "start")
    own = relaxation(network, "relu")
    own.alpha.data.fill_(-1.0)
    network.relu(torch.ones(2, 4, 4, 4)).sum().backward()
    assert float(own.alpha.grad) != 0
    assert torch.isfinite(network.relu(torch.ones(2, 4, 4, 4))).all()


def test_noise_differs_between_examples_and_steps_and_repeats_within_one() -> None:
    network, plan, _ = run_to("layer", "start")
    u = torch.ones(2, 4, 4, 4)
    one, again = network.relu(u.clone()), network.relu(u.clone())
    assert torch.equal(one, again)
    assert not torch.equal(one[0], one[1])
    plan.step()
    assert not torch.equal(one, network.relu(u.clone()))


def test_the_imagenet_recipe_has_sixteen_levels_up_to_three() -> None:
    network, plan, _ = run_to("fixed", "start")
    u = torch.linspace(-1, 8, 4 * 64).view(4, 4, 4, 4)
    assert torch.equal(network.relu(u.clone()), u.clamp(0, 6))  # ReLU6 while searching
    v = torch.randn(2, 4)
    assert torch.equal(network.tanh(v), v.tanh())  # not a ReLU
    plan.harden()
    values = network.eval().relu(u.clone()).unique()
    torch.testing.assert_close(values, torch.arange(16) / 5)
    assert plan.metrics()["activation_bits"] == 4.0


def test_pact_clips_and_rounds_from_the_first_step() -> None:
    network, plan, _ = run_to("pact", "start")
    own = network.get_submodule("relu.paretorch_activation.activations")
    u = torch.tensor([-1.0, 0.1, 0.5, 1.9, 2.5]).expand(2, 4, 1, 5).clone().requires_grad_()
    y = network.relu(u.clone())
    alpha, n = 2.0, 7.0
    literal = torch.round(0.5 * (u.abs() - (u - alpha).abs() + alpha) * n / alpha) * alpha / n
    torch.testing.assert_close(y, literal)
    y.sum().backward()
    torch.testing.assert_close(u.grad, torch.tensor([0.0, 1.0, 1.0, 1.0, 0.0]).expand_as(u))
    assert float(own.alpha.grad) == 2 * 4  # one clipped value in each row
    assert plan.metrics()["activation_bits"] == 3.0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=8),
    st.integers(1, 12),
    st.floats(-2, 2, width=32),
    st.floats(0.125, 16, width=32),
)
def test_quantizer_stays_within_half_a_step(values: list[float], bits: int, low: float, wide: float) -> None:
    u, high = torch.tensor(values), low + wide
    module = QuantizedActivation(nn.Identity(), steps_of(torch.tensor([bits])), torch.tensor([low, high])).eval()
    q = module(u)
    step = wide / (2**bits - 1)
    assert bool(((q - u.clamp(low, high)).abs() <= step / 2 + 1e-5 * max(abs(low), high, 1)).all())
    torch.testing.assert_close(module(q), q, rtol=1e-5, atol=1e-5)
    assert int(module.bits) == bits
    assert step / 2 <= wide / 2 * 2.0 ** (1 - bits) * (1 + 1e-9)  # within the noise that p bits are learned with
    assert math.isfinite(float(q.sum()))
