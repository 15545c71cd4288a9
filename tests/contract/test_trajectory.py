"""Promise 2: compile, bf16, accumulation and ranks follow the plain eager run."""

import pytest
import torch
from torch import nn

from paretorch import compress
from tests.contract.cases import (
    COUPLED,
    COUPLED_COVER,
    EVERY,
    METHODS,
    MODELS,
    STEPS,
    WITH_CHANNELS,
    attach,
    build,
    by_turns,
    combinations,
)
from tests.contract.loop import optimizer_of, snapshot, train
from tests.decisions import decisions

INDUCTOR = [("both-mixed", "attention"), ("coupled", "conv2d")]
SHAPES = [m for m in MODELS if m != "lstm"]  # a graph breaks around an LSTM
# Both methods together on every kind of layer, every other method on some kind; `make contract` has every pair.
WIDE = combinations(["both"], SHAPES) + COUPLED_COVER + by_turns([m for m in METHODS if m != "both"], SHAPES)
EVERYTHING = EVERY + combinations(list(COUPLED), WITH_CHANNELS)


def close(a: nn.Module, b: nn.Module, tolerance: float) -> None:
    left, right = snapshot(a), snapshot(b)
    assert left.keys() == right.keys()
    for key in left:
        if left[key].is_floating_point():
            torch.testing.assert_close(
                left[key], right[key], rtol=tolerance, atol=tolerance, msg=lambda m, key=key: f"{key}: {m}"
            )


def compiled_follows_eager(method: str, model: str, backend: str) -> None:
    torch._dynamo.reset()
    x = MODELS[model].batch(6)
    runs = []
    for compiled in (False, True):
        network = build(model)
        plan = attach(network, method, model)
        optimizer = optimizer_of(plan)
        runner = torch.compile(network, backend=backend, fullgraph=model != "lstm") if compiled else network
        counter = torch._dynamo.utils.counters["stats"]
        losses = train(runner, plan, optimizer, x, 2)
        graphs = counter["unique_graphs"]
        losses += train(runner, plan, optimizer, x, 3)
        assert counter["unique_graphs"] == graphs, "a changed temperature or step must not recompile"
        plan.harden(optimizer)
        losses += train(runner, plan, optimizer, x, 2)
        runs.append((network, losses))
    torch.testing.assert_close(runs[0][1], runs[1][1], rtol=1e-4, atol=1e-5)
    close(runs[0][0], runs[1][0], 1e-4)


@pytest.mark.parametrize(("method", "model"), WIDE)
def test_aot_eager(method: str, model: str) -> None:
    compiled_follows_eager(method, model, "aot_eager")


@pytest.mark.parametrize(("method", "model"), INDUCTOR)
def test_inductor(method: str, model: str) -> None:
    compiled_follows_eager(method, model, "inductor")


@pytest.mark.contract
@pytest.mark.parametrize(("method", "model"), EVERYTHING)
def test_inductor_everywhere(method: str, model: str) -> None:
    compiled_follows_eager(method, model, "inductor")


@pytest.mark.parametrize(
    ("method", "model"), combinations(list(METHODS), ["linear"]) + combinations(["both"], list(MODELS))
)
def test_bf16_autocast(method: str, model: str) -> None:
    x = MODELS[model].batch(6)
    runs = []
    for mixed in (False, True):
        network = build(model)
        plan = attach(network, method, model)
        runs.append((network, train(network, plan, optimizer_of(plan), x, 5, mixed=mixed)))
        assert all(decision.dtype == torch.float32 for decision in decisions(network))
    torch.testing.assert_close(runs[0][1], runs[1][1], rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("method", "model"), combinations(list(METHODS), ["conv2d"]) + combinations(["both"], list(MODELS))
)
def test_gradient_accumulation(method: str, model: str) -> None:
    x = MODELS[model].batch(6)
    runs = []
    for parts in (1, 2):
        network = build(model)
        plan = attach(network, method, model)
        runs.append((network, train(network, plan, optimizer_of(plan), x, 5, parts)))
    torch.testing.assert_close(runs[0][1], runs[1][1], rtol=1e-4, atol=1e-5)
    close(runs[0][0], runs[1][0], 2e-4)


def test_grad_scaler_skips_what_overflows() -> None:
    x = MODELS["linear"].batch(6)
    network = build("linear")
    plan = compress(network, *METHODS["both"](), steps=STEPS)
    optimizer = optimizer_of(plan)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    network(x).square().mean()
    before = snapshot(network)
    scaler.scale(network(x).mul(1e30).square().mean()).backward()
    scaler.step(optimizer)
    plan.step(scaler)
    scaler.update()
    after = snapshot(network)
    assert scaler.get_scale() == 2.0**39
    for key in before:
        if key.endswith(".s"):
            torch.testing.assert_close(after[key], before[key], rtol=0, atol=1e-3)  # at most the steering moved it
            assert torch.isfinite(after[key]).all()
