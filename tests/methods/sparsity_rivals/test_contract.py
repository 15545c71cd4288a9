"""Every rival keeps the promises of tests/contract: compile, state, deepcopy, preview, finalize, exact targets."""

from functools import partial

import pytest
import torch
from torch import nn

from paretorch import SMOL, Plan, compress
from paretorch.methods.sparsity.rivals import DNW, following
from tests.contract.cases import MODELS, STEPS, build, combinations
from tests.contract.loop import optimizer_of, train
from tests.contract.promises import (
    Run,
    Watch,
    can_be_captured,
    compiled_follows_eager,
    continues_bit_for_bit,
    mixes_and_accumulates,
    previews_what_harden_does,
)
from tests.contract.test_finalize import anatomy
from tests.methods.sparsity_rivals.cases import NETWORKS, RIVALS

CASES = combinations(list(RIVALS), NETWORKS)
COVER = [(rival, NETWORKS[i % len(NETWORKS)]) for i, rival in enumerate(RIVALS)]
SAME_FORWARD = (
    "mp-layer",
    "mp-channel",
    "dnw-global",
    "st3-layer",
    "l0-penalty",
    "stochastic-free",
    "mp+smol",
    "dnw+smol",
    "l0+smol",
    "stochastic+smol",
)


def started(rival: str, model: str, steps: int = 0, seed: int = 0) -> Run:
    network = build(model, seed)
    plan = compress(network, *RIVALS[rival](), steps=STEPS)
    optimizer, x = optimizer_of(plan), MODELS[model].batch(6)
    train(network, plan, optimizer, x, steps)
    return network, plan, optimizer, x


def zeros(plan: Plan) -> tuple[int, int]:
    values = [plan.dense_state_dict()[site.name] for site, chain in zip(plan._sites, plan._chains, strict=True)]
    return sum(int((value == 0).sum()) for value in values), sum(value.numel() for value in values)


@pytest.mark.parametrize(("rival", "model"), [case for case in COVER if case[0] not in SAME_FORWARD])
def test_compiled_in_one_graph_follows_eager(rival: str, model: str) -> None:
    compiled_follows_eager(partial(started, rival, model))


@pytest.mark.parametrize("phase", ["start", "searching", "hard"])
@pytest.mark.parametrize(("rival", "model"), COVER)
def test_state_and_deepcopy_continue_bit_for_bit(rival: str, model: str, phase: str) -> None:
    continues_bit_for_bit(partial(started, rival, model), phase)


@pytest.mark.parametrize(("rival", "model"), CASES)
def test_preview_harden_finalize(rival: str, model: str) -> None:
    run = started(rival, model, STEPS)
    previews_what_harden_does(run)
    network, plan, _, x = run
    train(*run, 2)
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
    kept = [plan.dense_state_dict()[site.name] != 0 for site, chain in zip(plan._sites, plan._chains, strict=True)]
    train(network, plan, optimizer, x, 3)
    after = [plan.dense_state_dict()[site.name] != 0 for site, chain in zip(plan._sites, plan._chains, strict=True)]
    assert not any(bool((new & ~old).any()) for old, new in zip(kept, after, strict=True)), (
        "dropped weights stay dropped"
    )


@pytest.mark.parametrize("rival", list(RIVALS))
def test_bf16_autocast_and_accumulation(rival: str) -> None:
    mixes_and_accumulates(partial(started, rival, "conv2d"), within=1e-3)


@pytest.mark.parametrize("rival", [rival for rival in RIVALS if "smol" not in rival])
def test_a_step_can_be_captured_on_a_device(rival: str) -> None:
    can_be_captured(started(rival, "linear", 3)[1])


def test_the_watch_sees_what_it_should() -> None:
    with Watch() as watch:
        float(torch.ones(()) + torch.tensor(1.0))
    assert watch.seen == ["aten::lift_fresh", "aten::_local_scalar_dense"]


@pytest.mark.parametrize("most", [2**20, 2**10])
@pytest.mark.parametrize("scope", ["global", "layer"])
def test_large_layers_are_sampled_and_met_exactly(scope: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "WHOLE", most)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(300, 200), nn.Linear(200, 10))
    plan = compress(network, DNW(target=0.9, scope=scope), steps=STEPS)
    assert plan.metrics()["sparsity"] == pytest.approx(0.9, abs=0.01 if most < 62000 else 1e-4)
    plan.harden()
    assert zeros(plan) == (55800, 62000)
