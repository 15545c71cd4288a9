"""Promises of tests/contract that suites of single rooms check for their own methods; `start` makes a run afresh."""

import copy
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from paretorch import Plan
from tests.contract.loop import equal, snapshot, train
from tests.decisions import decisions

Run = tuple[nn.Module, Plan, torch.optim.Optimizer, Tensor]
Start = Callable[..., Run]  # (steps, seed): how many are behind it, and of its network


def compiled_follows_eager(start: Start) -> None:
    """In one graph, which no schedule makes anew; a second one once hard."""
    torch._dynamo.reset()
    network, plan, optimizer, x = start()
    twin, twin_plan, twin_optimizer, _ = start()
    runner = torch.compile(twin, backend="aot_eager", fullgraph=True)
    counter = torch._dynamo.utils.counters["stats"]
    before = counter["unique_graphs"]
    for steps in (2, 3):
        expected = train(network, plan, optimizer, x, steps)
        torch.testing.assert_close(train(runner, twin_plan, twin_optimizer, x, steps), expected, rtol=1e-4, atol=1e-5)
    assert counter["unique_graphs"] == before + 1, "schedules must not recompile"
    plan.harden(optimizer)
    twin_plan.harden(twin_optimizer)
    expected = train(network, plan, optimizer, x, 2)
    torch.testing.assert_close(train(runner, twin_plan, twin_optimizer, x, 2), expected, rtol=1e-4, atol=1e-5)


def continues_bit_for_bit(start: Start, phase: str) -> None:
    """From its state in a network of other weights, and as a deep copy."""
    network, plan, optimizer, x = start(0 if phase == "start" else 5)
    if phase == "hard":
        plan.harden(optimizer)
        train(network, plan, optimizer, x, 2)
    network(x)
    twin, twin_optimizer = copy.deepcopy((network, optimizer))
    saved = copy.deepcopy((network.state_dict(), plan.state_dict(), optimizer.state_dict()))
    before = snapshot(twin)
    losses = train(network, plan, optimizer, x, 3)
    assert equal(snapshot(twin), before), "a copy lives its own life"

    fresh, again, own, _ = start(0, 1)
    fresh.load_state_dict(saved[0])
    again.load_state_dict(saved[1])
    own.load_state_dict(saved[2])
    assert again.is_hard == plan.is_hard
    assert train(fresh, again, own, x, 3) == losses
    assert equal(snapshot(fresh), snapshot(network))
    assert train(twin, Plan.of(twin), twin_optimizer, x, 3) == losses
    assert equal(snapshot(twin), snapshot(network))


def previews_what_harden_does(run: Run) -> None:
    """`hardened` shows it and leaves no trace; the keys stay."""
    network, plan, optimizer, x = run
    before, soft = snapshot(network), network.eval()(x)
    with plan.hardened() as preview:
        hard = preview(x)
    assert equal(snapshot(network), before)
    assert torch.equal(network(x), soft)
    plan.harden(optimizer)
    assert torch.equal(network(x), hard)
    assert list(network.state_dict()) == list(before)
    network.train()


def mixes_and_accumulates(start: Start, within: float) -> None:
    """Halves of a batch follow the whole, within so much; bf16 follows fp32, with decisions in fp32."""
    whole, halves, mixed = (start() for _ in range(3))
    losses = train(*whole, 4)
    torch.testing.assert_close(train(*halves, 4, parts=2), losses, rtol=within, atol=within)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(train(*mixed, 4), losses, rtol=0.1, atol=0.2)
    assert all(decision.dtype == torch.float32 for decision in decisions(mixed[0]))


class Watch(TorchDispatchMode):
    """Notes every operation that reads a value back to the host or copies one from there."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name() in ("aten::_local_scalar_dense", "aten::lift_fresh", "aten::nonzero"):
            self.seen.append(func.name())
        return func(*args, **(kwargs or {}))


def can_be_captured(plan: Plan) -> None:
    """A step of the plan waits for nothing, so that it can be part of a CUDA graph."""
    # On a CPU, gradients are looked at, and Adam reads its count of steps.
    with patch("paretorch.core.plan.check_finite"), patch.object(torch.optim.Adam, "step"), Watch() as watch:
        plan.step()
    assert watch.seen == []
