"""Continuous Sparsification against Algorithm 1, and what a target promises."""

import copy
import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from paretorch import SMOL, ContinuousSparsification, Plan, compress
from tests.decisions import Gradients, decisions, largest_group
from tests.methods.sparsity.algorithm_1 import GATES, continuous_sparsification


def small_net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(36, 3))


def batch(n: int = 8) -> Tensor:
    return torch.randn(n, 2, 3, 3, generator=torch.Generator().manual_seed(1))


def loss_of(output: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, torch.arange(len(output)) % output.shape[1])


def scatter(plan: Plan, seed: int = 0) -> None:
    """Decisions as a training might leave them, with some ties."""
    generator = torch.Generator().manual_seed(seed)
    for decision in decisions(plan.model):
        decision.data.copy_((torch.randn(decision.shape, generator=generator) * 8).round() / 8)


def sparsity_of(model: nn.Module) -> float:
    weights = [p for p in model.parameters() if p.dim() > 1]
    return sum(int((w == 0).sum()) for w in weights) / sum(w.numel() for w in weights)


@pytest.mark.parametrize("group", ["weight", "channel", "layer"])
@pytest.mark.parametrize("gate", list(GATES))
def test_follows_algorithm_1(gate: str, group: str) -> None:
    steps, x, plain = 50, batch(), small_net()
    model = copy.deepcopy(plain)
    options = {"init": -0.1, "penalty": 1e-3, "final_temperature": 60.0}
    plan = compress(
        model,
        ContinuousSparsification(gate=gate, group=group, anneal=1.0, lr=0.1, momentum=0.9, **options),
        steps=steps,
    )
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.05, momentum=0.9)
    layers = {"0.weight": model[0], "3.weight": model[3]}
    masks = {name: layer.paretorch_weight.sparsity for name, layer in layers.items()}
    shapes = {name: tuple(mask.s.shape) for name, mask in masks.items()}
    reference = continuous_sparsification(
        plain, shapes, loss_of, x, gate=gate, s_init=-0.1, penalty=1e-3, final=60.0, steps=steps
    )
    for theta, s in reference:
        loss_of(model(x)).backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
        for name, layer in layers.items():
            torch.testing.assert_close(layer.paretorch_weight.latent, theta[name], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(masks[name].s, s[name], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(layer.bias, theta[name.replace("weight", "bias")], rtol=1e-4, atol=1e-5)
    assert all(float((one.detach() + 0.1).abs().max()) > 1e-2 for one in s.values()), "the decisions must have moved"
    plan.harden()
    scale = 1 / float(GATES[gate](torch.tensor(-0.1), 1.0))
    for name, layer in layers.items():
        torch.testing.assert_close(layer.weight, scale * theta[name] * (s[name] >= 0), rtol=1e-4, atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(target=st.floats(0, 0.999), rows=st.integers(1, 9), columns=st.integers(1, 9), hidden=st.integers(1, 9))
def test_weights_meet_the_target_exactly(target: float, rows: int, columns: int, hidden: int) -> None:
    assume((1 - target) * hidden * (columns + rows) >= 0.5)
    model = nn.Sequential(nn.Linear(columns, hidden), nn.Linear(hidden, rows))
    nn.init.constant_(model[0].weight, 1.0)
    nn.init.constant_(model[1].weight, 1.0)
    plan = compress(model, ContinuousSparsification(target=target), steps=10)
    scatter(plan)
    plan.harden()
    count = hidden * (columns + rows)
    measured = plan.metrics()["sparsity"]
    assert sparsity_of(plan.finalize()) == pytest.approx(measured, abs=1e-6)
    assert abs(measured * count - target * count) <= 0.5 + 1e-3
    assert abs(measured * count - round(measured * count)) < 1e-3


@pytest.mark.filterwarnings("ignore::paretorch.errors.MissedTargetWarning")
@settings(max_examples=25, deadline=None)
@given(target=st.floats(0, 0.84), group=st.sampled_from(["channel", "layer", (2, 3), (3, 3, 2, 2), (4, 1, 3)]))
def test_groups_meet_the_target_within_one_group(target: float, group: str | tuple[int, ...]) -> None:
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Conv2d(5, 7, 3))
    plan = compress(model, ContinuousSparsification(target=target, group=group), steps=10)
    scatter(plan)
    largest = largest_group(model, "sparsity")
    plan.harden()
    measured = plan.metrics()["sparsity"]
    assert abs(measured - target) * (5 * 3 * 9 + 7 * 5 * 9) <= largest + 1e-3
    assert sparsity_of(plan.finalize()) == pytest.approx(measured, abs=1e-6)


def test_ties_go_by_index() -> None:
    model = nn.Linear(5, 4, bias=False)
    nn.init.constant_(model.weight, 1.0)
    plan = compress(model, ContinuousSparsification(target=0.65), steps=10)
    plan.harden()
    assert plan.finalize().weight.flatten().ne(0).tolist() == [True] * 7 + [False] * 13


def test_the_share_follows_a_cubic_schedule_and_rounding_then_changes_little() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4))
    steps, generator = 600, torch.Generator().manual_seed(2)
    plan = compress(model, ContinuousSparsification(target=0.8, exclude="4"), steps=steps)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.05, momentum=0.9)
    x = torch.randn(512, 32, generator=generator)
    y = (x[:, :4] + x[:, 4:8]).argmax(1)
    for t in range(1, steps + 1):
        some = torch.randint(0, 512, (32,), generator=generator)
        nn.functional.cross_entropy(model(x[some]), y[some]).backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
        if t >= steps // 5:
            goal = 0.8 * (1 - (1 - min(t / (0.5 * steps), 1)) ** 3)
            assert plan.metrics()["sparsity"] == pytest.approx(goal, abs=0.03)
    assert plan.metrics()["sparsity"] == pytest.approx(0.8, abs=0.01)
    soft = model.eval()(x).detach()
    plan.harden()
    assert float((model(x) - soft).detach().abs().mean()) < 0.05 * float(soft.abs().mean())


@pytest.mark.parametrize("anneal", [0.3, 0.75, 1.0])
def test_temperature_is_a_function_of_the_step(anneal: float) -> None:
    steps = 40
    plan = compress(
        nn.Linear(3, 3), ContinuousSparsification(target=0.5, final_temperature=200.0, anneal=anneal), steps=steps
    )
    for t in range(steps + 1):
        expected = 200.0 ** min(t / (anneal * steps), 1.0)
        assert plan.metrics()["temperature"] == pytest.approx(expected, rel=2e-6)
        plan.step()


@pytest.mark.parametrize("gate", list(GATES))
def test_the_gradients_are_those_of_a_softer_mask(gate: str) -> None:
    steps, at = 40, 15
    torch.manual_seed(0)
    model = nn.Linear(4, 3, bias=False)
    seen = Gradients(lr=0.5)
    method = ContinuousSparsification(init=0.1, gate=gate, anneal=0.5, gradient_anneal=0.9, optimizer=seen)
    plan = compress(model, method, steps=steps)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.1)
    x = torch.randn(8, 4)
    for _ in range(at):
        model(x).square().mean().backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
    mask = model.paretorch_weight.sparsity
    theta, s = model.paretorch_weight.latent.detach().clone(), mask.s.detach().clone()
    step = torch.tensor(at / steps)
    steep, soft = (200.0 ** float(step / share) for share in (0.5, 0.9))
    scale = 1 / float(GATES[gate](torch.tensor(0.1), 1.0))
    torch.testing.assert_close(model.weight, scale * theta * GATES[gate](s, steep))
    model.weight.sum().backward()
    before = theta.clone()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    gradient = before - model.weight.detach()
    plan.step()
    gradients = gradient, seen.found[0]
    twins = theta.requires_grad_(), s.requires_grad_()
    wanted = torch.autograd.grad((scale * twins[0] * GATES[gate](twins[1], soft)).sum(), twins)
    torch.testing.assert_close(gradients, wanted)
    steeper = torch.autograd.grad((scale * twins[0] * GATES[gate](twins[1], steep)).sum(), twins)
    assert not any(torch.allclose(one, other, atol=1e-3) for one, other in zip(wanted, steeper, strict=True))


@pytest.mark.parametrize("init", [-2.0, -0.3, 0.0, 0.5])
@pytest.mark.parametrize("gate", list(GATES))
def test_the_mask_keeps_the_scale_and_the_grid(gate: str, init: float) -> None:
    method = ContinuousSparsification(target=0.5, init=init, gate=gate)
    alone, together = small_net(), small_net()
    plain = alone[0].weight.detach().clone()
    compress(alone, method, steps=5)
    torch.testing.assert_close(alone[0].weight, plain)
    compress(together, method, SMOL(penalty=1e-4), steps=5).model.eval()
    ratio = float((together[0].weight / plain).mean().detach())
    exponent = math.log2(ratio / float(GATES[gate](torch.tensor(init), 1.0)))
    assert exponent == pytest.approx(round(exponent), abs=1e-5)
    assert 2**-0.51 <= ratio <= 2**0.51
