"""Every rival keeps the promises of tests/contract: compile, state, deepcopy, preview, finalize, the file."""

import math
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from paretorch import Plan, compress
from paretorch.deploy import load, save
from paretorch.errors import PareWarning
from paretorch.methods.precision.rivals import BSQ, SLB, DoReFa
from tests.contract.cases import MODELS, STEPS, build, combinations, rivals
from tests.contract.loop import equal, optimizer_of, snapshot, train
from tests.contract.promises import (
    Run,
    can_be_captured,
    compiled_follows_eager,
    continues_bit_for_bit,
    mixes_and_accumulates,
    previews_what_harden_does,
)
from tests.contract.test_finalize import anatomy
from tests.methods.precision_rivals.cases import NETWORKS, RIVALS

COVER = [(rival, NETWORKS[i % 3]) for i, rival in enumerate(RIVALS)]
OTHERS = ["transposed", "embedding", "lstm", "attention", "conv1d"]
CASES = [
    *combinations(list(RIVALS), NETWORKS),
    *((rival, OTHERS[(i + k) % len(OTHERS)]) for i, rival in enumerate(RIVALS) for k in range(2)),
]
SAME_FORWARD = ("pact-channel", "lsq-channel", "lqnets-channel", "dsq-1", "slb-1", "uniform-fit", "lsq+cs")


def started(rival: str, model: str, steps: int = 0, seed: int = 0) -> Run:
    network = build(model, seed)
    plan = compress(network, *RIVALS[rival](), steps=STEPS)
    optimizer, x = optimizer_of(plan), MODELS[model].batch(6)
    train(network, plan, optimizer, x, steps)
    return network, plan, optimizer, x


@pytest.mark.parametrize(("rival", "model"), [case for case in COVER if case[0] not in SAME_FORWARD])
def test_compiled_in_one_graph_follows_eager(rival: str, model: str) -> None:
    compiled_follows_eager(partial(started, rival, model))


@pytest.mark.parametrize("phase", ["start", "searching", "hard"])
@pytest.mark.parametrize(("rival", "model"), COVER)
def test_state_and_deepcopy_continue_bit_for_bit(rival: str, model: str, phase: str) -> None:
    continues_bit_for_bit(partial(started, rival, model), phase)


@pytest.mark.parametrize(("rival", "model"), CASES)
def test_preview_harden_finalize_and_the_file(rival: str, model: str, tmp_path: Path) -> None:
    run = started(rival, model, STEPS)
    previews_what_harden_does(run)
    network, plan, _, x = run
    train(*run, 2)
    expected = network.eval()(x)
    allowed = [_most_values(plan, i) for i in range(len(plan._sites))]
    names = [site.name for site in plan._sites]
    small = plan.finalize()
    assert torch.equal(small(x), expected)
    assert anatomy(small) == anatomy(build(model))
    for name, most in zip(names, allowed, strict=True):
        assert len(small.get_parameter(name).unique()) <= most, "no more values than the bits can tell apart"
    if model == "tied":
        assert small.head.weight is small.embed.weight
    save(small, tmp_path / "model.pare")
    assert torch.equal(load(tmp_path / "model.pare", into=build(model, 3)).eval()(x), expected)


def _most_values(plan: Plan, index: int) -> float:
    relaxation = plan._chains[index].precision
    bits = int(relaxation.bits(relaxation.grid()).max())
    values = 2 ** (bits + 1) - 1 if type(relaxation).__name__ == "_Planes" else 2**bits  # planes, and a sign
    inner = getattr(relaxation, "inner", relaxation.grouping)
    grids = math.prod(inner.grid) if type(relaxation).__name__ in ("_Binned", "_Stepped", "_Basis") else 1
    return grids * values + (len(plan.methods()) > 1)


@pytest.mark.parametrize(("rival", "model"), COVER)
def test_decisions_are_settled_once_hard(rival: str, model: str) -> None:
    network, plan, optimizer, x = started(rival, model, STEPS)
    plan.harden(optimizer)
    bits = plan.metrics()["bits"]
    decisions = [d.detach().clone() for term in plan._terms for d in term.decisions()]
    old = snapshot(network)
    train(network, plan, optimizer, x, 3)
    assert plan.metrics()["bits"] == bits
    for decision, now in zip(decisions, [d for term in plan._terms for d in term.decisions()], strict=True):
        assert torch.equal(decision, now)
    assert not equal(snapshot(network), old), "weights go on training"
    methods = [m for m in plan.methods() if m.room == "precision"]
    if len(plan.methods()) == 1 and type(methods[0]).__name__ != "BSQ":
        assert bits == methods[0].bits


@pytest.mark.parametrize("rival", list(rivals("precision")))
def test_bf16_autocast_and_accumulation(rival: str) -> None:
    mixes_and_accumulates(partial(started, rival, "conv2d"), within=2e-2)


@pytest.mark.parametrize("rival", [rival for rival in RIVALS if "cs" not in rival])
def test_a_step_can_be_captured_on_a_device(rival: str) -> None:
    can_be_captured(started(rival, "linear", 3)[1])


@pytest.mark.parametrize("rival", list(RIVALS))
def test_training_lowers_the_loss(rival: str) -> None:
    network, plan, optimizer, x = started(rival, "conv2d")
    losses = train(network, plan, optimizer, x, STEPS)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("rival", [BSQ(), DoReFa(bits=4), SLB(bits=2)])
def test_a_layer_of_zeros_that_cannot_leave_them_is_told(rival: BSQ | DoReFa | SLB) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    nn.init.zeros_(model[1].weight)
    with pytest.warns(PareWarning, match=r"^1\.weight is all zeros, .* initialize it, or exclude it$"):
        compress(model, rival, steps=4)
