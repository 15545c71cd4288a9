"""The scale of a layer's grid: what suits its weights, and follows them while precisions are searched for."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from paretorch import SMOL, ContinuousSparsification, compress
from paretorch.methods.precision.grid import Scaled, quantize, scale_offset, update_powers
from tests.contract.loop import optimizer_of, train
from tests.decisions import relaxations


def error(weight: torch.Tensor, k: int, bits: int) -> float:
    return float((weight - 2.0**k * quantize(weight / 2.0**k, torch.tensor(bits))).square().mean())


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 6, 8])
@settings(max_examples=10, deadline=None)
@given(spread=st.floats(-8.0, 3.0))
def test_it_is_about_the_best_for_normal_weights(bits: int, spread: float) -> None:
    weight = torch.randn(20_000, generator=torch.Generator().manual_seed(0)) * 2.0**spread
    chosen = round(math.log2(float(weight.square().mean().sqrt())) + scale_offset(bits))
    best = min(error(weight, k, bits) for k in range(chosen - 5, chosen + 6))
    assert error(weight, chosen, bits) <= 1.5 * best  # 1.48 is the worst of these, at the border between two scales


@pytest.mark.parametrize("bits", [0.05, 0.3, 0.7, 0.99])
def test_with_few_bits_zero_precision_has_room(bits: float) -> None:
    for spread in torch.linspace(0.5, 1.0, 9).tolist():
        weight = spread * torch.randn(20_000, generator=torch.Generator().manual_seed(2))
        k = round(math.log2(float(weight.square().mean().sqrt())) + scale_offset(bits, zero_precision=True))
        assert float((weight.abs() > 2.0 ** (k - 1)).float().mean()) <= bits * 1.02
    assert scale_offset(1.5, zero_precision=True) == scale_offset(1.5)


@pytest.mark.parametrize(("size", "k"), [(1e-17, -56), (1e-30, -60), (1e17, 56), (1e25, 60), (0.0, 0)])
def test_weights_whose_squares_are_no_numbers_have_one_too(size: float, k: int) -> None:
    model = nn.Linear(8, 8)
    nn.init.constant_(model.weight, size)
    compress(model, SMOL(target_bits=2.0), steps=2)
    powers = [int(value) for name, value in model.state_dict().items() if name.endswith("power")]
    assert powers == [k]


@settings(max_examples=40, deadline=None)
@given(start=st.integers(-20, 20), factor=st.floats(-12.0, 12.0), size=st.sampled_from([3, 500, 2048, 30_000]))
def test_it_follows_the_weights(start: int, factor: float, size: int) -> None:
    weight = torch.randn(size, generator=torch.Generator().manual_seed(1))
    weight = weight / weight.square().mean().sqrt() * 2.0 ** (start + factor)
    power = torch.tensor(start, dtype=torch.int32)
    other = torch.tensor(7, dtype=torch.int32)
    update_powers([Scaled(power, 0.0, weight), Scaled(other, 0.0, torch.zeros(4))])
    update_powers([])
    sampled = 0.15 if size > 2048 else 1e-3
    assert abs(int(power) - (start + factor)) <= 0.6 + sampled
    if abs(factor) < 0.6 - sampled:
        assert int(power) == start, "it does not move for little"
    assert int(other) == 7, "weights of zeros say nothing"


def test_a_layer_keeps_its_grid_once_rounded_or_where_it_is_given() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 40), nn.Linear(40, 40))
    plan = compress(model, SMOL(target_bits=3.0, overrides={"1": {"scale": 0}}), steps=8)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.0)

    def step() -> list[int | None]:
        model(torch.randn(4, 40)).square().sum().backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
        return [own.scale_exponent() for own in relaxations(model)]

    before = step()
    with torch.no_grad():
        for layer in model:
            layer.paretorch_weight.latent.mul_(0.25)
    after = step()
    assert (before[1], after[1]) == (0, 0)
    assert after[0] == before[0] - 2
    plan.harden(optimizer)
    with torch.no_grad():
        model[0].paretorch_weight.latent.mul_(0.25)
    assert step() == after


@pytest.mark.parametrize("shape", [(40, 50), (8, 4, 5, 5)])
def test_dropped_weights_do_not_count(shape: tuple[int, ...]) -> None:
    weight = torch.full(shape, 0.01)
    weight[0] = 4.0
    if len(shape) == 4:
        weight = weight.contiguous(memory_format=torch.channels_last)
    power = torch.tensor(0, dtype=torch.int32)
    kept = torch.zeros(shape[0], *[1] * (len(shape) - 1))
    kept[0] = 1.0
    update_powers([Scaled(power, 0.0, weight, kept)])
    assert int(power) == 2
    update_powers([Scaled(power, 0.0, weight, 1.0 - kept)])
    assert int(power) == round(math.log2(0.01))
    update_powers([Scaled(power, 0.0, weight, 0.0 * kept)])
    assert int(power) == round(math.log2(0.01)), "where nothing is kept, nothing is said"


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.contract)])
def test_compiled_it_moves_alike(backend: str) -> None:
    generator = torch.Generator().manual_seed(4)

    def layers() -> list[Scaled]:
        generator.manual_seed(4)
        conv = torch.randn(24, 16, 3, 3, generator=generator).contiguous(memory_format=torch.channels_last)
        some = (torch.rand(24, 16, 3, 3, generator=generator) > 0.7).float()
        rows = torch.linspace(0.0, 1.0, 24).view(24, 1, 1, 1).round()
        weights = [
            conv * 0.02,
            conv * 0.3,
            conv * rows * 8.0,
            conv * 5.0,
            torch.zeros(7, 5),
            torch.ones(3).half() * 0.04,
        ]
        kept = [None, some.contiguous(memory_format=torch.channels_last), 1.0 - 0.5 * rows, rows, None, None]
        powers = [torch.tensor(i, dtype=torch.int32) for i in range(len(weights))]
        return [Scaled(k, 0.2, w, m) for k, w, m in zip(powers, weights, kept, strict=True)]

    plain, compiled = layers(), layers()
    update_powers(plain)
    torch.compile(update_powers, backend=backend, fullgraph=True)(compiled)
    found = [int(layer.power) for layer in plain]
    assert found == [int(layer.power) for layer in compiled]
    assert found == [-5, -1, 2, 3, 4, -4]


def test_beside_masks_it_follows_what_is_kept() -> None:
    torch.manual_seed(0)
    model = nn.Linear(60, 50)
    methods = ContinuousSparsification(target=0.9, anneal=0.5), SMOL(target_bits=0.3)
    plan = compress(model, *methods, steps=20)
    train(model, plan, optimizer_of(plan), torch.randn(16, 60), 20)
    own = model.paretorch_weight
    spread = math.log2(float(own.latent.detach()[own.survives() > 0].square().mean().sqrt()))
    assert abs(spread + own.precision.scale_offset - own.precision.scale_exponent()) < 0.8


@pytest.mark.parametrize("target", [0.02, 0.3, 0.8])
def test_zero_precision_finds_room_for_any_target(target: float) -> None:
    """Weights far from normal, half of them alike: where too many would keep a bit, the grid grows at `harden`."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 40), nn.Linear(40, 40))
    with torch.no_grad():
        for layer in model:
            layer.weight.copy_(torch.sign(layer.weight) * (0.9 + 0.2 * torch.rand(40, 40)))
    plan = compress(model, SMOL(target_bits=target, zero_precision=True), steps=8)
    before = [int(own.power) for own in relaxations(model)]
    with plan.hardened():
        assert plan.metrics()["bits"] == pytest.approx(target, abs=0.01)
        grown = [int(own.power) > k for own, k in zip(relaxations(model), before, strict=True)]
        assert any(grown) == (target == 0.8), "for few bits the grid is large from the start"
    assert [int(own.power) for own in relaxations(model)] == before
    plan.harden()
    assert plan.metrics()["bits"] == pytest.approx(target, abs=0.01)
