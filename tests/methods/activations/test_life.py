"""State, copies, compilers and ranks: what every method promises, for decisions on activations."""

import copy
from functools import partial
from pathlib import Path

import pytest
import torch

from paretorch import Plan
from tests.contract.loop import equal, optimizer_of, snapshot, train
from tests.contract.promises import continues_bit_for_bit
from tests.decisions import decisions, relaxations
from tests.meeting import both_ranks
from tests.methods.activations.nets import METHODS, attach, batch, build, run_to, started
from tests.methods.activations.rank import CASES


@pytest.mark.parametrize("phase", ["start", "searching", "hard"])
@pytest.mark.parametrize("method", list(METHODS))
def test_state_and_deepcopy_continue_bit_for_bit(method: str, phase: str) -> None:
    continues_bit_for_bit(partial(started, method), phase)


@pytest.mark.parametrize("phase", ["searching", "hard"])
@pytest.mark.parametrize("method", list(METHODS))
def test_a_copy_is_finalized_alone(method: str, phase: str) -> None:
    network, plan, _ = run_to(method, phase)
    network(batch())
    twin_plan = Plan.of(copy.deepcopy(network))
    assert twin_plan is not plan
    plain = twin_plan.finalize()
    assert not any("paretorch" in name for name, _ in plain.named_modules())
    assert any("paretorch" in name for name, _ in network.named_modules())


@pytest.mark.parametrize("method", list(METHODS))
def test_keys_are_the_same_in_every_phase(method: str) -> None:
    keys = {phase: list(run_to(method, phase)[0].state_dict()) for phase in ("start", "searching", "hard")}
    assert keys["start"] == keys["searching"] == keys["hard"]


@pytest.mark.parametrize("method", ["position", "beside", "fixed", "pact"])
def test_compiled_follows_eager(method: str) -> None:
    compiled_follows_eager(method, "aot_eager")


@pytest.mark.contract
@pytest.mark.parametrize("method", ["position", "beside"])
def test_inductor_follows_eager(method: str) -> None:
    compiled_follows_eager(method, "inductor")


def compiled_follows_eager(method: str, backend: str) -> None:
    torch._dynamo.reset()
    runs = []
    for compiled in (False, True):
        network = build()
        plan = attach(network, method)
        optimizer = optimizer_of(plan)
        runner = torch.compile(network, backend=backend, fullgraph=True) if compiled else network
        losses = train(runner, plan, optimizer, batch(), 2)
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        losses += train(runner, plan, optimizer, batch(), 2)
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs, "a step must not recompile"
        if method == "beside":
            losses += train(runner, plan, optimizer, batch(4), 1)  # another batch size
        plan.harden(optimizer)
        losses += train(runner, plan, optimizer, batch(), 2)
        runs.append((snapshot(network), losses))
    torch.testing.assert_close(runs[0][1], runs[1][1], rtol=1e-4, atol=1e-5)
    for key, value in runs[0][0].items():
        torch.testing.assert_close(runs[1][0][key], value, rtol=1e-4, atol=1e-4)


def test_bf16_autocast_and_another_dtype() -> None:
    runs = []
    for mixed in (False, True):
        network = build()
        plan = attach(network, "position")
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            runs.append(train(network, plan, optimizer_of(plan), batch(), 4))
        assert all(decision.dtype == torch.float32 for decision in decisions(network))
    torch.testing.assert_close(runs[0], runs[1], rtol=0.05, atol=0.05)
    network, plan, _ = run_to("position", "searching")
    network.double()
    assert all(p.dtype == torch.float32 for own in relaxations(network) for p in own.parameters())
    plan.harden()
    assert network(batch().double()).dtype == torch.float64


def test_a_preview_leaves_everything_as_it_was() -> None:
    network, plan, _ = run_to("beside", "searching")
    before, soft = snapshot(network), network.eval()(batch())
    with plan.hardened():
        assert not torch.equal(network(batch()), soft)
    assert equal(snapshot(network), before)
    assert torch.equal(network(batch()), soft)


def test_two_ranks_follow_one_that_accumulates_two_halves(tmp_path: Path) -> None:
    """Each rank draws the same noise for its first example, as each accumulated part of a batch does."""
    both_ranks("tests.methods.activations.rank", tmp_path)
    by_rank = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    for kind, method in CASES:
        network = build()
        plan = attach(network, method)
        optimizer = optimizer_of(plan)
        train(network, plan, optimizer, batch(8), 5, parts=2)
        plan.harden(optimizer)
        train(network, plan, optimizer, batch(8), 2, parts=2)
        one = plan.plain_state_dict()
        for key in one:
            first, second = (found[f"{kind} {method}"][key] for found in by_rank)
            assert torch.equal(first, second), f"{kind} {method}: ranks decide apart at {key}"
            apart = (first.float() - one[key].float()).abs() > 1e-3
            assert apart.float().mean() <= 0.02, f"{kind} {method}: {key} differs from one rank"
