"""Every quantization rival has no more values than its bits can tell apart, settles them, and learns."""

import math

import pytest
import torch
from torch import nn

from paretorch import compress
from paretorch.core.relaxation import Relaxation
from paretorch.errors import PareWarning
from paretorch.methods.precision.rivals import BSQ, SLB, DoReFa
from tests.contract.cases import STEPS
from tests.contract.loop import equal, snapshot, train
from tests.contract.rivals import CASES, COVER, QUANTIZERS, started
from tests.decisions import copies, decisions, relaxed

# Bits of entropy-coded values tell any number of them apart: tests/methods/precision/test_real_steps.py counts those.
FIXED = {name for name, methods in QUANTIZERS.items() if not any(one.codes_zeros for one in methods())}


@pytest.mark.parametrize(("rival", "model"), [case for case in CASES if case[0] in FIXED])
def test_no_more_values_than_the_bits_can_tell_apart(rival: str, model: str) -> None:
    run = started(rival, model, STEPS)
    _, plan, optimizer, _ = run
    plan.harden(optimizer)
    train(*run, 2)
    together = len(plan.methods()) > 1
    allowed = {name: _most_values(own.precision) + together for name, own in relaxed(plan.model).items()}
    small = plan.finalize()
    for name, most in allowed.items():
        assert len(small.get_parameter(name).unique()) <= most


def _most_values(relaxation: Relaxation) -> float:
    bits = int(relaxation.bits(relaxation.grid()).max())
    values = 2 ** (bits + 1) - 1 if type(relaxation).__name__ == "_Planes" else 2**bits  # planes, and a sign
    inner = getattr(relaxation, "inner", relaxation.grouping)
    grids = math.prod(inner.grid) if type(relaxation).__name__ in ("_Binned", "_Stepped", "_Basis") else 1
    return grids * values


@pytest.mark.parametrize(("rival", "model"), [case for case in COVER if case[0] in QUANTIZERS])
def test_decisions_are_settled_once_hard(rival: str, model: str) -> None:
    network, plan, optimizer, x = started(rival, model, STEPS)
    plan.harden(optimizer)
    bits = plan.metrics()["bits"]
    before = copies(decisions(network))
    old = snapshot(network)
    train(network, plan, optimizer, x, 3)
    if rival in FIXED:
        assert plan.metrics()["bits"] == bits
    for decision, now in zip(before, decisions(network), strict=True):
        assert torch.equal(decision, now)
    assert not equal(snapshot(network), old), "weights go on training"
    methods = [m for m in plan.methods() if m.kind == "precision"]
    if rival in FIXED and len(plan.methods()) == 1 and type(methods[0]).__name__ != "BSQ":
        assert bits == methods[0].bits


@pytest.mark.parametrize("rival", list(QUANTIZERS))
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
