"""SMOL with real steps: the formulas literally, the target, what the loss feels, and rounding alone."""

import copy
import math
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import paretorch as pt
from paretorch.core.method import Term
from paretorch.errors import ConfigError, UndecidedWarning
from paretorch.methods.precision.rate import Tally, coded_bits, laplace_bits, laplace_slope, short_steps
from paretorch.methods.precision.step_sizes import start_from_steps
from paretorch.methods.precision.stepped import Stepped
from tests.decisions import Gradients


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3, groups=16), nn.Flatten(), nn.Linear(256, 10)
    )


def batch() -> Tensor:
    return torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def steps_in(model: nn.Module) -> list[Stepped]:
    return [module for module in model.modules() if isinstance(module, Stepped)]


def train(model: nn.Module, plan: pt.Plan, steps: int, factor: float = 1.0) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(plan.param_groups(), lr=1e-3)
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(batch()), torch.arange(8) % 10)
        (loss * factor).backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
    return optimizer


def entropy(probabilities: list[float]) -> float:
    return -sum(p * math.log2(p) for p in probabilities if p > 0)


@pytest.mark.parametrize("ratio", [0.05, 0.5, 1.0, 3.0, 10.0])
def test_bits_of_laplace_weights_are_the_entropy_of_their_codes(ratio: float) -> None:
    def below(x: float) -> float:  # the distribution function, of mean magnitude 1
        return 0.5 * math.exp(x) if x < 0 else 1.0 - 0.5 * math.exp(-x)

    codes = range(-int(40 / ratio) - 1, int(40 / ratio) + 2)
    probabilities = [below((k + 0.5) * ratio) - below((k - 0.5) * ratio) for k in codes]
    assert float(laplace_bits(torch.tensor(ratio))) == pytest.approx(entropy(probabilities), abs=1e-4)


def test_halving_a_small_step_costs_a_bit_and_large_steps_cost_nothing() -> None:
    assert float(laplace_slope(torch.tensor(0.01))) == pytest.approx(-1.0, abs=1e-2)
    assert float(laplace_slope(torch.tensor(60.0))) == pytest.approx(0.0, abs=1e-3)


def test_codes_cost_their_entropy_and_never_more_than_a_fixed_width() -> None:
    codes = torch.tensor([0.0] * 6000 + [1.0] * 2000 + [-1.0] * 2000)
    found = float(coded_bits([Tally.of(codes, torch.zeros(1))]))
    assert found == pytest.approx(10000 * entropy([0.6, 0.2, 0.2]) + 3 * 8, rel=1e-6)
    assert float(coded_bits([Tally.of(torch.tensor([-1.0, 0.0, 1.0, 2.0]), torch.zeros(1))])) == pytest.approx(4 * 2.0)
    half = torch.tensor([1.0, 0.0]).repeat(5000)
    assert float(coded_bits([Tally.of(torch.cat([codes, codes]), torch.zeros(1), half.repeat(2))])) == pytest.approx(
        found, rel=0.01
    )


@given(step=st.floats(1e-6, 1e3), size=st.integers(1, 2**20))
def test_short_steps_are_a_little_smaller_with_few_digits(step: float, size: int) -> None:
    own = torch.tensor(step, dtype=torch.float32)
    short = short_steps(own, float(size))
    digits = max(3, min(math.floor(math.log2(size) - 5.0), 20))
    assert float(own) * (1 - 2.0**-digits) <= float(short) <= float(own)
    assert float(torch.frexp(short).mantissa) * 2 ** (digits + 1) % 1 == 0


@pytest.mark.parametrize("group", ["channel", "layer", (1, 2)])
def test_weights_are_multiples_of_their_steps_from_the_start(group: str | tuple[int, int]) -> None:
    model = net()
    latent = model[4].weight.detach().clone()
    pt.compress(model, pt.SMOL(target_bits=3.0, group=group, include="4*"), steps=10)
    own = steps_in(model)[-1]
    wide = own.grouping.expand(2 * own.base * torch.sigmoid(own.decision.detach()))
    torch.testing.assert_close(model[4].weight.detach(), torch.round(latent / wide) * wide)


class _Unpriced(pt.SMOL):
    """Its decisions have the gradient of the loss alone."""

    def price(self, term: Term) -> None:
        return None


def test_gradients_are_straight_through_and_those_of_learned_steps() -> None:
    model = net()
    gradients = Gradients()
    plan = pt.compress(model, _Unpriced(target_bits=3.0, group="channel", optimizer=gradients), steps=10)
    own, weight = steps_in(model)[-1], model[4].weight
    latent = own.grouping.expand(torch.zeros(own.grouping.grid)) + model[4].paretorch_weight.latent.detach()
    nn.functional.cross_entropy(model(batch()), torch.arange(8) % 10).backward()
    gradient = weight.grad.clone()
    s = torch.zeros(own.grouping.grid, requires_grad=True)
    step = 2 * own.base * torch.sigmoid(s)
    v = latent / step
    rounded = v + (torch.round(v) - v).detach()  # LSQ: straight through the rounding, not through the division
    (rounded * step * gradient).sum().backward()
    torch.optim.SGD(plan.param_groups(), lr=0.0).step()
    plan.step()
    torch.testing.assert_close(gradients.found[-1], s.grad, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(weight.grad, gradient)


@pytest.mark.parametrize("target", [0.7, 2.0, 3.5, 6.0])
def test_the_target_is_met_in_few_steps_and_by_the_values(target: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 256), nn.ReLU(), nn.Linear(256, 10))
    plan = pt.compress(model, pt.SMOL(target_bits=target, group="channel"), steps=30)
    assert plan.metrics()["bits"] == pytest.approx(target, abs=0.1)
    optimizer = train(model, plan, 30)
    assert plan.metrics()["bits"] == pytest.approx(target, abs=0.05)
    plan.harden(optimizer)
    assert target - 0.01 <= plan.metrics()["bits"] <= target


def test_what_is_learned_does_not_depend_on_the_scale_of_the_loss() -> None:
    found = []
    for factor in (1.0, 2.0**20):
        model = net()
        plan = pt.compress(model, pt.SMOL(target_bits=3.0, group="channel", optimizer=_still), steps=12)
        optimizer = torch.optim.SGD(plan.param_groups(), lr=0.0)
        for _ in range(12):
            (nn.functional.cross_entropy(model(batch()), torch.arange(8) % 10) * factor).backward()
            optimizer.step()
            plan.step()
            optimizer.zero_grad()
        found.append([own.base.clone() for own in steps_in(model)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=0.0)


def _still(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.0)


def test_steps_follow_the_squared_gradients() -> None:
    """Δ² ∝ 2 / (h + mean h): where the loss feels more, steps are smaller."""
    torch.manual_seed(0)
    model = nn.Linear(64, 4, bias=False)
    plan = pt.compress(model, pt.SMOL(target_bits=4.0, group="channel", optimizer=_still), steps=4)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.0)
    felt = torch.tensor([1.0, 4.0, 16.0, 64.0])
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(3))
    (model(x) * felt).sum().backward()
    heat = model.weight.grad.square().mean(1)
    optimizer.step()
    plan.step()
    expected = (heat + heat.mean()).rsqrt()
    own = steps_in(model)[0].base.flatten()
    torch.testing.assert_close(own / own[0], expected / expected[0], rtol=1e-4, atol=0.0)


def test_rows_that_no_batch_shows_keep_the_step_of_their_layer() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(40, 32), nn.Linear(32, 5))
    model[0].weight.data[:] = model[0].weight.data[:1]  # rows that differ in nothing but how often they are seen
    plan = pt.compress(model, pt.SMOL(target_bits=4.0, group="channel", optimizer=_still), steps=10)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.0)
    for _ in range(10):
        x = torch.arange(10)
        nn.functional.cross_entropy(model(x), x % 5).backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
    steps = steps_in(model)[0].base.flatten()
    assert bool((steps[10:] == steps[10]).all())
    assert float(steps[:10].min()) * 0.99 <= float(steps[10]) <= float(steps[:10].max()) * 1.5


def plain(weight: Tensor, bits: int) -> Tensor:
    """Rounding by the largest magnitude of each channel."""
    flat = weight.flatten(1)
    step = (flat.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)).clamp_min(1e-30)
    return (torch.round(flat / step) * step).view(weight.shape)


@pytest.mark.filterwarnings("ignore:.*is zero and need not stay so")
@settings(max_examples=60, deadline=None)
@given(
    bits=st.integers(2, 8),
    channels=st.integers(1, 40),
    each=st.sampled_from([(1, 3, 3), (8,), (64,), (5, 3, 3)]),
    tails=st.sampled_from(["normal", "uniform", "heavy", "sparse", "ternary"]),
    seed=st.integers(0, 99),
)
def test_rounding_alone_is_no_worse_than_by_the_largest_magnitude(
    bits: int, channels: int, each: tuple[int, ...], tails: str, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(channels, *each, generator=generator)
    if tails == "uniform":
        weight = torch.rand(weight.shape, generator=generator) - 0.5
    elif tails == "heavy":
        weight = weight**5
    elif tails == "sparse":
        weight = weight * (torch.rand(weight.shape, generator=generator) < 0.2)
    elif tails == "ternary":
        weight = torch.sign(weight) * (weight.abs() > 0.5) * 0.3
    weight = weight * torch.logspace(-2, 1, channels).view(-1, *(1,) * len(each))
    layer: nn.Module = nn.Linear(each[0], channels) if len(each) == 1 else nn.Conv2d(each[0], channels, 3)
    model = nn.Sequential(layer, nn.Linear(8, 8))
    layer.weight.data.copy_(weight)
    plan = pt.compress(model, pt.SMOL(target_bits=float(bits), group="channel", include="0*"), steps=10)
    plan.harden()
    small = plan.finalize()
    error = (small[0].weight.detach() - weight).double().square().sum()
    assert float(error) <= float((plain(weight, bits) - weight).double().square().sum()) * (1 + 1e-6) + 1e-12


def test_given_steps_are_kept_to_the_bit() -> None:
    model = net()
    before = model[4].weight.detach().clone()
    plan = pt.compress(model, pt.SMOL(target_bits=3.0, group="channel", lr=1e-9), steps=10)
    steps = {"4.weight": torch.linspace(0.01, 0.02, 10).view(10, 1), "0.weight": torch.tensor(0.03)}
    start_from_steps(plan, steps)
    expected = torch.round(before / steps["4.weight"]) * steps["4.weight"]
    assert torch.equal(model[4].weight, expected)
    plan.harden()
    assert torch.equal(model[4].weight, expected)
    train(model, plan, 3)
    codes = model[4].weight.detach() / steps["4.weight"]
    assert float((codes - codes.round()).abs().max()) < 1e-4
    assert not torch.equal(model[4].weight, expected)


def test_given_steps_that_do_not_fit_are_refused() -> None:
    model = net()
    plan = pt.compress(model, pt.SMOL(target_bits=3.0, group="channel"), steps=10)
    with pytest.raises(ConfigError, match="is no weight of the plan"):
        start_from_steps(plan, {"9.weight": torch.tensor(0.1)})
    with pytest.raises(ConfigError, match="one positive number"):
        start_from_steps(plan, {"4.weight": torch.zeros(10)})
    binary = pt.compress(net(), pt.SMOL(target_bits=3.0), steps=10)
    with pytest.raises(ConfigError, match="no real steps"):
        start_from_steps(binary, {"4.weight": torch.tensor(0.1)})


def test_which_options_mean_real_steps() -> None:
    assert pt.SMOL(target_bits=3.0, group="channel").scale == "real"
    assert pt.SMOL(target_bits=3.0, group=(1, 32)).scale == "real"
    assert pt.SMOL(target_bits=3.0).scale == "auto"
    assert pt.SMOL(target_bits=3.0, group="channel", scale="fit").scale == "fit"
    for options in ({"penalty": 1e-3}, {"zero_precision": True}, {"allowed_bits": (2, 4)}, {"rounding": "round"}):
        assert pt.SMOL(group="channel", **options).scale == "auto"
    assert pt.SMOL(target_bits=3.0, group="layer", overrides={"4*": {"group": "weight"}}).scale == "auto"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"group": "weight"}, "one step per group"),
        ({"group": "channel", "zero_precision": True}, "leave out zero_precision"),
        ({"group": "channel", "allowed_bits": (4,)}, "leave out allowed_bits"),
        ({"group": "channel", "penalty": 0.1}, "needs no penalty"),
    ],
)
def test_options_that_do_not_go_with_real_steps_are_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        pt.compress(net(), pt.SMOL(target_bits=3.0, scale="real", **options), steps=10)


def test_a_budget_is_kept_and_a_copy_goes_on(tmp_path: Path) -> None:
    model = net()
    pt.compress(model, pt.SMOL(group="channel"), steps=10, budget=3000)
    other = copy.deepcopy(model)
    for one in (model, other):
        train(one, pt.Plan.of(one), 3)
    assert torch.equal(model[4].weight, other[4].weight)
    pt.save(pt.Plan.of(model).finalize(), tmp_path / "model.pare")
    assert 2700 <= (tmp_path / "model.pare").stat().st_size <= 3000


def test_rounding_that_changes_the_network_is_warned_of() -> None:
    plan = pt.compress(net(), pt.SMOL(target_bits=3.0), steps=10)
    with pytest.warns(UndecidedWarning, match="times as far as by the noise that they were trained with"):
        plan.harden()
    model = net()
    plan = pt.compress(model, pt.SMOL(target_bits=3.0, group="channel"), steps=10)
    for own in steps_in(model):
        own.base.mul_(0.5)
    with pytest.warns(UndecidedWarning, match="steps change by a factor of 2"):
        plan.harden()


def test_rounding_that_changes_little_is_not() -> None:
    model = net()
    plan = pt.compress(model, pt.SMOL(target_bits=3.0, group="channel"), steps=10)
    optimizer = train(model, plan, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UndecidedWarning)
        plan.harden(optimizer)
