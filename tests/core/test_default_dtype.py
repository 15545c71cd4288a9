"""torch's default dtype is about new tensors of the user's: a plan computes the same under any."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from paretorch import compress
from tests.contract import cases
from tests.contract.loop import equal, optimizer_of, snapshot, train
from tests.contract.rivals import PRUNERS, QUANTIZERS
from tests.methods.activations import nets
from tests.methods.sharing import cases as sharing

ROOMS = {
    "core": {**cases.METHODS, **cases.COUPLED},
    "sharing": sharing.METHODS,
    "activations": nets.METHODS,
    "pruners": PRUNERS,
    "quantizers": QUANTIZERS,
}
REGISTERED = {*cases.rivals("sparsity"), *cases.rivals("precision")}
CASES = [
    pytest.param(
        room, name, torch.bfloat16, marks=[pytest.mark.contract] * (room.endswith("ers") and name not in REGISTERED)
    )
    for room, methods in ROOMS.items()
    for name in methods
]
CASES += [(room, name, torch.float64) for room, name in (("core", "both"), ("core", "coupled"), ("sharing", "masked"))]


@contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _network(room: str) -> tuple[nn.Module, Tensor]:
    if room == "sharing":
        return sharing.build("linear"), sharing.batch("linear")
    if room == "activations":
        return nets.build(), nets.batch()
    return cases.build("conv2d"), cases.MODELS["conv2d"].batch(6)


def _life(room: str, name: str, dtype: torch.dtype) -> list[dict[str, Tensor]]:
    """The states of a network in fp32 after some steps, when hardened and in the end."""
    network, x = _network(room)
    example = x[:2] if room == "activations" or name in cases.COUPLED else None
    with _default(dtype):
        plan = compress(network, *ROOMS[room][name](), steps=cases.STEPS, example=example)
        optimizer = optimizer_of(plan)
        train(network, plan, optimizer, x, cases.STEPS)
        searched = snapshot(network)
        plan.harden(optimizer)
        plan.metrics()
        return [searched, snapshot(network), snapshot(plan.finalize())]


@pytest.mark.filterwarnings("ignore::paretorch.errors.PareWarning")
@pytest.mark.parametrize(("room", "name", "dtype"), CASES)
def test_the_default_dtype_changes_nothing(room: str, name: str, dtype: torch.dtype) -> None:
    for own, usual in zip(_life(room, name, dtype), _life(room, name, torch.float32), strict=True):
        assert equal(own, usual)
