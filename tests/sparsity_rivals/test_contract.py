"""Every rival keeps the promises of tests/contract: compile, state, deepcopy, preview, finalize, exact targets."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from paretorch import SMOL, Plan, compress
from paretorch.core.update import add_price, advance, gradients_of
from paretorch.sparsity.rivals import DNW
from tests.contract.cases import MODELS, STEPS, build, combinations
from tests.contract.loop import equal, optimizer_of, snapshot, train
from tests.contract.test_finalize import anatomy
from tests.sparsity_rivals.cases import NETWORKS, RIVALS

CASES = combinations(list(RIVALS), NETWORKS)
COVER = [(rival, NETWORKS[i % len(NETWORKS)]) for i, rival in enumerate(RIVALS)]
SAME_FORWARD = (
    "mp-layer",
    "mp-channel",
    "dnw-global",
    "st3-layer",
    "l0-target",
    "ss-target",
    "mp+smol",
    "dnw+smol",
    "l0+smol",
    "ss+smol",
)


def started(
    rival: str, model: str, steps: int = 0, seed: int = 0
) -> tuple[nn.Module, Plan, torch.optim.Optimizer, Tensor]:
    network = build(model, seed)
    plan = compress(network, *RIVALS[rival](), steps=STEPS)
    optimizer, x = optimizer_of(plan), MODELS[model].batch(6)
    train(network, plan, optimizer, x, steps)
    return network, plan, optimizer, x


def zeros(plan: Plan) -> tuple[int, int]:
    values = [plan.effective(site, chain) for site, chain in zip(plan._sites, plan._chains, strict=True)]
    return sum(int((value == 0).sum()) for value in values), sum(value.numel() for value in values)


@pytest.mark.parametrize(("rival", "model"), [case for case in COVER if case[0] not in SAME_FORWARD])
def test_compiled_in_one_graph_follows_eager(rival: str, model: str) -> None:
    torch._dynamo.reset()
    network, plan, optimizer, x = started(rival, model)
    twin, twin_plan, twin_optimizer, _ = started(rival, model)
    runner = torch.compile(twin, backend="aot_eager", fullgraph=True)
    counter = torch._dynamo.utils.counters["stats"]
    before = counter["unique_graphs"]
    for steps in (2, 3):
        expected = train(network, plan, optimizer, x, steps)
        torch.testing.assert_close(train(runner, twin_plan, twin_optimizer, x, steps), expected, rtol=1e-4, atol=1e-5)
    assert counter["unique_graphs"] == before + 1, "schedules and thresholds must not recompile"
    plan.harden(optimizer)
    twin_plan.harden(twin_optimizer)
    expected = train(network, plan, optimizer, x, 2)
    torch.testing.assert_close(train(runner, twin_plan, twin_optimizer, x, 2), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("phase", ["start", "searching", "hard"])
@pytest.mark.parametrize(("rival", "model"), COVER)
def test_state_and_deepcopy_continue_bit_for_bit(rival: str, model: str, phase: str) -> None:
    network, plan, optimizer, x = started(rival, model, 0 if phase == "start" else 5)
    if phase == "hard":
        plan.harden(optimizer)
        train(network, plan, optimizer, x, 2)
    network(x)
    twin, twin_optimizer = copy.deepcopy((network, optimizer))
    saved = copy.deepcopy((network.state_dict(), plan.state_dict(), optimizer.state_dict()))
    losses = train(network, plan, optimizer, x, 3)

    fresh, again, own, _ = started(rival, model, seed=1)
    fresh.load_state_dict(saved[0])
    again.load_state_dict(saved[1])
    own.load_state_dict(saved[2])
    assert train(fresh, again, own, x, 3) == losses
    assert equal(snapshot(fresh), snapshot(network))
    assert train(twin, Plan.of(twin), twin_optimizer, x, 3) == losses
    assert equal(snapshot(twin), snapshot(network))


@pytest.mark.parametrize(("rival", "model"), CASES)
def test_preview_harden_finalize(rival: str, model: str) -> None:
    network, plan, optimizer, x = started(rival, model, STEPS)
    before, soft = snapshot(network), network.eval()(x)
    with plan.hardened() as preview:
        hard = preview(x)
    assert equal(snapshot(network), before)
    assert torch.equal(network(x), soft)
    plan.harden(optimizer)
    assert torch.equal(network(x), hard)
    assert list(network.state_dict()) == list(before)

    train(network.train(), plan, optimizer, x, 2)
    expected = network.eval()(x)
    small = plan.finalize()
    assert torch.equal(small(x), expected)
    assert anatomy(small) == anatomy(build(model))
    if model == "tied":
        assert small.head.weight is small.embed.weight


@pytest.mark.parametrize("model", NETWORKS)
@pytest.mark.parametrize("rival", list(RIVALS))
def test_target_is_exact_and_stays(rival: str, model: str) -> None:
    network, plan, optimizer, x = started(rival, model, STEPS)
    plan.harden(optimizer)
    method = next(m for m in plan.methods() if not isinstance(m, SMOL))
    dropped, total = zeros(plan)
    if method.target is not None:
        grouped = rival in ("mp-channel", "gmp-block")
        largest = max(r.grouping.reduce(torch.ones(r.grouping.shape)).max() for t in plan._terms for r in t.relaxations)
        largest = float(largest) if grouped else 1.0
        layers = len(plan._sites) if getattr(method, "scope", "global") == "layer" else 1
        assert abs(dropped - method.target * total) <= largest * layers / 2
        assert plan.metrics()["sparsity"] == pytest.approx(dropped / total, abs=1e-6)
        assert 0 < dropped < total
    kept = [plan.effective(site, chain) != 0 for site, chain in zip(plan._sites, plan._chains, strict=True)]
    train(network, plan, optimizer, x, 3)
    after = [plan.effective(site, chain) != 0 for site, chain in zip(plan._sites, plan._chains, strict=True)]
    assert not any(bool((new & ~old).any()) for old, new in zip(kept, after, strict=True)), (
        "dropped weights stay dropped"
    )


@pytest.mark.parametrize("rival", list(RIVALS))
def test_bf16_autocast_and_accumulation(rival: str) -> None:
    whole = started(rival, "conv2d")
    halves = started(rival, "conv2d")
    mixed = started(rival, "conv2d")
    losses = train(*whole, 4)
    torch.testing.assert_close(train(*halves, 4, parts=2), losses, rtol=1e-3, atol=1e-3)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(train(*mixed, 4), losses, rtol=0.05, atol=0.1)
    assert all(d.dtype == torch.float32 for t in mixed[1]._terms for d in t.decisions())


class _Watch(TorchDispatchMode):
    """Notes every operation that reads a value back to the host or copies one from there."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name() in ("aten::_local_scalar_dense", "aten::lift_fresh", "aten::nonzero"):
            self.seen.append(func.name())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("rival", [rival for rival in RIVALS if "smol" not in rival])
def test_a_step_can_be_captured_on_a_device(rival: str) -> None:
    _, plan, _, _ = started(rival, "linear", 3)
    (term,) = plan._terms
    with torch.no_grad(), _Watch() as watch:
        add_price(term, plan._terms, gradients_of(term))
        advance(plan._terms, plan._state.step)
    assert watch.seen == []
    with _Watch() as watch:
        float(torch.ones(()) + torch.tensor(1.0))
    assert watch.seen == ["aten::lift_fresh", "aten::_local_scalar_dense"], "the watch sees what it should"


@pytest.mark.parametrize("scope", ["global", "layer"])
def test_large_layers_are_sampled_and_met_exactly(scope: str) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(300, 200), nn.Linear(200, 10))
    plan = compress(network, DNW(target=0.9, scope=scope), steps=STEPS)
    assert plan.metrics()["sparsity"] == pytest.approx(0.9, abs=0.01)
    plan.harden()
    assert zeros(plan) == (55800, 62000)
