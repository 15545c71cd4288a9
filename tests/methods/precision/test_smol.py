"""SMOL against Algorithm 5, and what a target, a scale and a group promise."""

import copy
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from paretorch import SMOL, ContinuousSparsification, Plan, compress
from paretorch.core.method import Method
from paretorch.core.step.noise import seed_for, uniform
from paretorch.errors import ConfigError
from paretorch.methods.precision.grid import scale_offset
from tests.decisions import bits, decisions, largest_group, relaxations
from tests.methods.precision.algorithm_5 import Smol, q

GROUPS = ["weight", "channel", "layer"]


def small_net(spread: float | None = None) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(36, 3))
    if spread is not None:
        for layer in (model[0], model[3]):
            nn.init.normal_(layer.weight, std=spread).data.clamp_(-2, 2)
    return model


def batch() -> Tensor:
    return torch.randn(8, 2, 3, 3, generator=torch.Generator().manual_seed(1))


def loss_of(output: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, torch.arange(len(output)) % output.shape[1])


def noise(name: str, step: int, shape: torch.Size) -> Tensor:
    return uniform(shape, torch.tensor(step), seed_for(0, name))


def one_step(plan: Plan, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    loss_of(plan.model(x)).backward()
    optimizer.step()
    plan.step()
    optimizer.zero_grad()


def scatter(plan: Plan, seed: int = 0) -> None:
    """Decisions as a training might leave them."""
    generator = torch.Generator().manual_seed(seed)
    for decision in decisions(plan.model):
        decision.data.copy_(torch.randn(decision.shape, generator=generator) * 2 - 1)


@pytest.mark.parametrize("zero_precision", [False, True])
@pytest.mark.parametrize("group", GROUPS)
def test_follows_algorithm_5(group: str, zero_precision: bool) -> None:
    x, plain = batch(), small_net(spread=1.0)
    model = copy.deepcopy(plain)
    method = SMOL(penalty=1e-3, init_bits=3.0, lr=1e-3, group=group, zero_precision=zero_precision)
    plan = compress(model, method, steps=40)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.05, momentum=0.9)
    layers = {"0.weight": model[0], "3.weight": model[3]}
    chains = {name: layer.paretorch_weight.precision for name, layer in layers.items()}
    reference = Smol(plain, {name: tuple(one.s.shape) for name, one in chains.items()}, p_init=3.0)

    def compare(where: dict[str, Tensor]) -> None:
        for name, layer in layers.items():
            here, w = where[name].expand(layer.weight.shape), layer.paretorch_weight.latent
            torch.testing.assert_close(w[here], reference.w[name][here], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(layer.bias, reference.w[name.replace("weight", "bias")], rtol=1e-4, atol=1e-5)

    everywhere = {name: torch.tensor(True) for name in layers}
    for _ in reference.search(loss_of, x, noise, penalty=1e-3, steps=40):
        one_step(plan, optimizer, x)
        compare(everywhere)
        for name, one in chains.items():
            torch.testing.assert_close(one.s, reference.s[name], rtol=1e-4, atol=1e-5)
    clipped = [(2 - torch.sigmoid(s) - reference.w[name].abs()).detach() for name, s in reference.s.items()]
    assert min(float(room.min()) for room in clipped) <= 1e-6, "some weights must have met the clipping"

    plan.harden()
    reference.round(zero_precision)
    used = {name: p > 0 for name, p in reference.p.items()}
    assert zero_precision == any(bool((~one).any()) for one in used.values())
    if group == "weight":
        assert {2.0, 3.0} <= {float(p) for p in torch.cat([p.flatten() for p in reference.p.values()])}
    for _ in reference.fine_tune(loss_of, x, steps=10):
        one_step(plan, optimizer, x)
        compare(used)
        for name, layer in layers.items():
            expected = q(reference.w[name].detach(), reference.p[name])
            torch.testing.assert_close(layer.weight.detach(), expected, rtol=0, atol=1e-5)


def average_bits(plan: Plan) -> tuple[float, int]:
    """Bits a weight, counted from the values of the final network, 0 for a zero, and the number of weights."""
    own = bits(plan.model)
    model = plan.finalize()
    values = {name: model.get_parameter(name) for name in own}
    count = sum(v.numel() for v in values.values())
    return sum(int((own[name] * (v != 0)).sum()) for name, v in values.items()) / count, count


@settings(max_examples=30, deadline=None)
@given(target=st.floats(1, 8), group=st.sampled_from([*GROUPS, (2, 2)]), seed=st.integers(0, 9))
def test_bits_meet_the_target(target: float, group: str | tuple[int, ...], seed: int) -> None:
    plan = compress(small_net(), SMOL(target_bits=target, group=group, scale="auto"), steps=10)
    scatter(plan, seed)
    size = largest_group(plan.model, "precision")
    plan.harden()
    measured = plan.metrics()["bits"]
    counted, count = average_bits(plan)
    assert counted == pytest.approx(measured, abs=1e-5)
    assert measured == pytest.approx(target, abs=max(0.05, 0.5 * size / count) + 1e-5)


@pytest.mark.parametrize("group", GROUPS)
def test_the_average_follows_a_cubic_schedule(group: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
    steps, generator = 300, torch.Generator().manual_seed(2)
    plan = compress(model, SMOL(target_bits=2.5, group=group, scale="auto"), steps=steps)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.05, momentum=0.9)
    x = torch.randn(512, 32, generator=generator)
    for t in range(1, steps + 1):
        one_step(plan, optimizer, x[torch.randint(0, 512, (32,), generator=generator)])
        goal = 2.5 + 5.5 * (1 - min(t / (0.85 * steps), 1)) ** 3
        assert plan.metrics()["bits"] == pytest.approx(goal, abs=0.35)
    assert plan.metrics()["bits"] == pytest.approx(2.5, abs=0.2)


@pytest.mark.parametrize("target", [1.0, 2.3, 5.0])
def test_equal_precisions_are_raised_by_index(target: float) -> None:
    plan = compress(small_net(), SMOL(target_bits=target), steps=10)
    plan.harden()
    assert plan.metrics()["bits"] == pytest.approx(target, abs=1 / 180 + 1e-5)
    found = torch.cat([one.flatten() for one in bits(plan.model).values()])
    assert bool((found.diff() <= 0).all())


@settings(max_examples=20, deadline=None)
@given(target=st.floats(0.3, 4), seed=st.integers(0, 9), scale=st.sampled_from(["fit", "auto"]))
def test_bits_meet_the_target_with_zero_precision(target: float, seed: int, scale: str) -> None:
    plan = compress(small_net(0.4), SMOL(target_bits=target, zero_precision=True, scale=scale), steps=10)
    scatter(plan, seed)
    plan.harden()
    measured = plan.metrics()["bits"]
    counted, count = average_bits(plan)
    assert counted == pytest.approx(measured, abs=1e-5)
    assert measured == pytest.approx(target, abs=8 / count + 1e-5)


@settings(max_examples=25, deadline=None)
@given(
    sparsity=st.floats(0, 0.9),
    each=st.floats(1, 6),
    group=st.sampled_from(GROUPS),
    zero_precision=st.booleans(),
)
def test_dropped_weights_cost_no_bits(sparsity: float, each: float, group: str, zero_precision: bool) -> None:
    target = each * (1 - sparsity)
    precision = SMOL(target_bits=target, group=group, scale="auto", zero_precision=zero_precision)
    plan = compress(small_net(), ContinuousSparsification(target=sparsity), precision, steps=10)
    scatter(plan)
    size = largest_group(plan.model, "precision")
    plan.harden()
    measured = plan.metrics()["bits"]
    counted, count = average_bits(plan)
    assert counted == pytest.approx(measured, abs=1e-5)
    slack = (0.5 * each + 0.5 * size * (16 if zero_precision else 1)) / count
    assert measured == pytest.approx(target, abs=slack + 1e-5)


@settings(max_examples=20, deadline=None)
@given(
    allowed=st.sets(st.integers(1, 10), min_size=1, max_size=4),
    above=st.floats(0, 3),
    with_target=st.booleans(),
    group=st.sampled_from(GROUPS),
)
def test_only_allowed_bits(allowed: set[int], above: float, with_target: bool, group: str) -> None:
    target = min(min(allowed) + above, max(allowed), 8.0) if with_target and min(allowed) <= 8 else None
    goal = {"penalty": 1e-4} if target is None else {"target_bits": target}
    plan = compress(small_net(), SMOL(allowed_bits=tuple(allowed), group=group, **goal), steps=10)
    scatter(plan)
    plan.harden()
    for found in bits(plan.model).values():
        assert set(found.flatten().tolist()) <= allowed
    if target is not None:
        size = largest_group(plan.model, "precision")
        step = max((b - a for a, b in itertools.pairwise(sorted(allowed))), default=0)
        assert plan.metrics()["bits"] == pytest.approx(target, abs=0.5 * step * size / 180 + 1e-5)


def test_the_level_above_the_start_may_be_reached() -> None:
    """A target up to init_bits can be met though precisions are rounded down, and a start may lie between two levels."""
    for options in ({"init_bits": 3.7}, {"init_bits": 3.7, "allowed_bits": (1, 2, 4)}):
        plan = compress(small_net(), SMOL(target_bits=3.5, **options), steps=10)
        plan.harden()
        assert plan.metrics()["bits"] == pytest.approx(3.5, abs=0.02)


def test_a_layer_may_lie_above_or_below_the_target() -> None:
    """A target is about all layers together: what is allowed to one of them need not include it."""
    overrides = {"0": {"allowed_bits": (8,)}, "3": {"init_bits": 2.5}}
    plan = compress(small_net(), SMOL(target_bits=4.0, overrides=overrides), steps=10)
    plan.harden()
    first, last = bits(plan.model).values()
    assert set(first.flatten().tolist()) == {8}
    assert plan.metrics()["bits"] == pytest.approx(4.0, abs=1 / 180 + 1e-5)
    assert set(last.flatten().tolist()) == {1, 2}


@pytest.mark.parametrize("old", [False, True])
def test_the_grid_comes_with_the_state(old: bool) -> None:
    """`scale="auto"` reads the weights at the start, which a network that is about to be resumed never had."""
    method = SMOL(target_bits=3.0, scale="auto")
    first = compress(small_net(0.05), method, steps=10)
    state = first.model.state_dict()
    if old:  # as it was before the grid was kept
        state = {key: value for key, value in state.items() if not key.endswith(".power")}
    second = compress(small_net(0.05 if old else 0.7), method, steps=10)
    second.model.load_state_dict(state)
    exponents = [[one.scale_exponent() for one in relaxations(plan.model)] for plan in (first, second)]
    assert exponents[0] == exponents[1]
    assert max(exponents[0]) < 0
    first.harden()
    second.harden()
    assert torch.equal(first.model.eval()(batch()), second.model.eval()(batch()))
    assert first.edits() == second.edits()


@pytest.mark.parametrize("scale", ["auto", -3, 0, 2])
def test_values_lie_on_the_scaled_grid(scale: str | int) -> None:
    model = small_net()
    rms = float(model[3].weight.detach().square().mean().sqrt())
    exponent = round(math.log2(rms) + scale_offset(3.0)) if scale == "auto" else int(scale)
    plan = compress(model, SMOL(penalty=0.0, scale=scale, init_bits=4.5), steps=10)
    small = plan.finalize()
    unit = 2.0**exponent * 2.0 ** (1 - 4)
    codes = small[3].weight.detach() / unit
    assert bool((codes.remainder(2) == 1).all()), "odd multiples of 2^k · 2^(1−p)"
    assert float(codes.abs().max()) <= 15
    if scale == "auto":
        assert float(codes.abs().max()) >= 7, "a grid that the weights use"


def test_weights_outside_the_grid() -> None:
    def model() -> nn.Module:
        made = small_net()
        made[3].weight.data[0, 0] = 5.0
        return made

    with pytest.raises(ConfigError, match=r'3\.weight has weights up to 5.*scale="auto"'):
        compress(model(), SMOL(scale=0), steps=10)
    for scale in ("fit", 2):
        plan = compress(model(), SMOL(scale=scale, penalty=1e-4), steps=10)
        value = plan.finalize()[3].weight[0, 0].detach()
        assert float(value) == pytest.approx(5.0, abs=8 * 2.0**-7)
    plan = compress(model(), SMOL(scale="auto", penalty=1e-4), steps=10)
    top = 2.0 * float(relaxations(plan.model)[1].scale)
    assert float(plan.finalize()[3].weight[0, 0].detach()) == pytest.approx(min(5.0, top), rel=2.0**-7)


@pytest.mark.parametrize("group", ["channel", "layer", (2, 3)])
def test_a_group_pays_for_each_of_its_weights(group: str | tuple[int, ...]) -> None:
    """With the price as the only force, SGD at rate 1 moves s by the size of the group times what one weight moves."""

    def moved(how: str | tuple[int, ...]) -> tuple[Tensor, Plan]:
        method: Method = SMOL(
            penalty=1e-3, group=how, include="3", optimizer=lambda decisions: torch.optim.SGD(decisions, lr=1.0)
        )
        plan = compress(small_net(), method, steps=10)
        (s,) = decisions(plan.model)
        before = s.detach().clone()
        plan.step()
        return s.detach() - before, plan

    one, _ = moved("weight")
    many, plan = moved(group)
    sizes = torch.as_tensor(relaxations(plan.model)[0].grouping.sizes).expand(many.shape)
    torch.testing.assert_close(many, sizes * one[0, 0], rtol=1e-4, atol=1e-6)
    assert float(one[0, 0]) == pytest.approx(1e-3 * (1 - 2.0**-7) / math.log(2), rel=1e-3)


def test_without_a_target_s_has_the_printed_rate() -> None:
    """However few the steps: where λ decides there is nothing that they would have to suffice for."""
    s = [nn.Parameter(torch.zeros(3))]
    assert SMOL(penalty=1e-6).decisions_optimizer(s, steps=20).param_groups[0]["lr"] == 1e-3
    assert SMOL(target_bits=2.0).decisions_optimizer(s, steps=20).param_groups[0]["lr"] > 0.1
    assert SMOL(target_bits=2.0).decisions_optimizer(s, steps=10**6).param_groups[0]["lr"] == 1e-3


def test_the_target_is_met_however_far_a_search_went() -> None:
    plan = compress(small_net(), SMOL(target_bits=2.0), steps=1)
    scatter(plan)
    for decision in decisions(plan.model):
        decision.data.mul_(20.0)  # up to 80 bits and more, as one step at a high rate leaves them
    plan.harden()
    assert float(plan.metrics()["bits"]) == pytest.approx(2.0, abs=1e-6)
