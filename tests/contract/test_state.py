"""Promise 3: a state loaded into a fresh plan continues bit for bit, in every phase; deepcopy does too."""

import copy

import pytest
import torch

from paretorch import Plan, compress
from paretorch.errors import ConfigError
from tests.contract.cases import (
    COUPLED,
    COUPLED_COVER,
    METHODS,
    MODELS,
    STEPS,
    WITH_CHANNELS,
    attach,
    build,
    combinations,
    only_in_contract,
)
from tests.contract.loop import equal, optimizer_of, snapshot, train
from tests.decisions import copies, decisions

CASES = combinations(list(METHODS), ["linear", "tied"]) + combinations(["both", "precision-zero"], list(MODELS))
CASES += combinations(list(COUPLED), WITH_CHANNELS)
FEW = combinations(list(METHODS), ["linear"]) + combinations(["both"], list(MODELS)) + COUPLED_COVER
FEW += [("sparsity-channel", "tied"), ("precision-zero", "tied")]
CASES_BY_MARK = only_in_contract(CASES, FEW)


def run_to(method: str, model: str, phase: str) -> tuple[torch.nn.Module, Plan, torch.optim.Optimizer]:
    network = build(model)
    plan = attach(network, method, model)
    optimizer = optimizer_of(plan)
    x = MODELS[model].batch(6)
    if phase != "start":
        train(network, plan, optimizer, x, 5)
    if phase == "hard":
        plan.harden(optimizer)
        train(network, plan, optimizer, x, 2)
    return network, plan, optimizer


@pytest.mark.parametrize("phase", ["start", "searching", "hard"])
@pytest.mark.parametrize(("method", "model"), CASES_BY_MARK)
def test_continues_bit_for_bit(method: str, model: str, phase: str) -> None:
    network, plan, optimizer = run_to(method, model, phase)
    saved = copy.deepcopy((network.state_dict(), plan.state_dict(), optimizer.state_dict()))
    x = MODELS[model].batch(6)
    losses = train(network, plan, optimizer, x, 3)

    fresh = build(model, seed=1)
    again = attach(fresh, method, model)
    own = optimizer_of(again)
    fresh.load_state_dict(saved[0])
    again.load_state_dict(saved[1])
    own.load_state_dict(saved[2])
    assert again.is_hard == plan.is_hard
    assert train(fresh, again, own, x, 3) == losses
    assert equal(snapshot(fresh), snapshot(network))


@pytest.mark.parametrize("phase", ["searching", "hard"])
@pytest.mark.parametrize(("method", "model"), CASES_BY_MARK)
def test_deepcopy_lives_its_own_life(method: str, model: str, phase: str) -> None:
    network, plan, optimizer = run_to(method, model, phase)
    x = MODELS[model].batch(6)
    network(x)
    twin, twin_optimizer = copy.deepcopy((network, optimizer))
    before = snapshot(twin)
    losses = train(network, plan, optimizer, x, 3)
    assert equal(snapshot(twin), before)
    twin_plan = Plan.of(twin)
    assert twin_plan is not plan
    assert train(twin, twin_plan, twin_optimizer, x, 3) == losses
    assert equal(snapshot(twin), snapshot(network))


@pytest.mark.parametrize("method", [*METHODS, *COUPLED])
def test_keys_are_the_same_in_every_phase(method: str) -> None:
    keys = {phase: list(run_to(method, "conv2d", phase)[0].state_dict()) for phase in ("start", "searching", "hard")}
    assert keys["start"] == keys["searching"] == keys["hard"]


def test_state_of_another_plan_is_refused() -> None:
    network, *_ = run_to("sparsity", "linear", "searching")
    other = build("linear")
    compress(other, *METHODS["sparsity"](), steps=STEPS + 1)
    with pytest.raises(ConfigError, match="steps was 12, is 13"):
        other.load_state_dict(network.state_dict())
    with pytest.raises(ConfigError, match="before compress"):
        other.load_state_dict(build("linear").state_dict())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_decisions_stay_fp32_when_the_model_changes_dtype(dtype: torch.dtype) -> None:
    network, plan, _ = run_to("both", "linear", "searching")
    before = copies(decisions(network))
    temperature = plan.metrics()["temperature"]
    network.to(dtype)
    after = decisions(network)
    assert all(torch.equal(a, b) and b.dtype == torch.float32 for a, b in zip(before, after, strict=True))
    assert plan.metrics()["temperature"] == temperature
    x = MODELS["linear"].batch(6).to(dtype)
    losses = train(network, plan, optimizer_of(plan), x, 3)
    assert all(loss == loss for loss in losses)
