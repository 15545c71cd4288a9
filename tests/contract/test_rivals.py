"""Every rival keeps the promises too: compile, state, deepcopy, preview, finalize, the file, bf16, accumulation, ranks."""

from functools import partial
from pathlib import Path

import pytest
import torch

from paretorch.deploy import load, save
from paretorch.methods.precision.shuffle import GivenPrecision
from paretorch.methods.registry import METHODS as REGISTERED
from tests.contract.cases import METHODS, STEPS, build, rivals
from tests.contract.loop import train
from tests.contract.promises import (
    Watch,
    can_be_captured,
    compiled_follows_eager,
    continues_bit_for_bit,
    mixes_and_accumulates,
    previews_what_harden_does,
)
from tests.contract.rivals import CASES, COVER, PRUNERS, RIVALS, started
from tests.contract.test_finalize import anatomy
from tests.methods.activations import nets
from tests.methods.sharing import cases as sharing

# Variants whose forward pass is that of another case, as a compiler sees it.
SAME_FORWARD = {
    *("mp-layer", "mp-channel", "dnw-global", "st3-layer", "l0-penalty", "stochastic-free"),
    *("mp+smol", "dnw+smol", "l0+smol", "stochastic+smol"),
    *("pact-channel", "lsq-channel", "lqnets-channel", "dsq-1", "slb-1", "uniform-fit", "lsq+cs"),
}


def test_every_registered_method_takes_the_contract() -> None:
    """In one of the tables; those of activations and sharing have suites in tests/methods, built from the same promises."""
    tables = (METHODS, RIVALS, nets.METHODS, sharing.METHODS)
    found = {type(method) for table in tables for make in table.values() for method in make()}
    assert {one.method for one in REGISTERED} - found == {GivenPrecision}, "which needs the file of another run"


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
    small = plan.finalize()
    assert torch.equal(small(x), expected)
    assert anatomy(small) == anatomy(build(model))
    if model == "tied":
        assert small.head.weight is small.embed.weight
    save(small, tmp_path / "model.pare")
    assert torch.equal(load(tmp_path / "model.pare", into=build(model, 3)).eval()(x), expected)


@pytest.mark.parametrize("rival", [*PRUNERS, *rivals("precision")])
def test_bf16_autocast_and_accumulation(rival: str) -> None:
    mixes_and_accumulates(partial(started, rival, "conv2d"), within=1e-3 if rival in PRUNERS else 2e-2)


@pytest.mark.parametrize("rival", [rival for rival in RIVALS if "+" not in rival])
def test_a_step_can_be_captured_on_a_device(rival: str) -> None:
    can_be_captured(started(rival, "linear", 3)[1])


def test_the_watch_sees_what_it_should() -> None:
    with Watch() as watch:
        float(torch.ones(()) + torch.tensor(1.0))
    assert watch.seen == ["aten::lift_fresh", "aten::_local_scalar_dense"]
