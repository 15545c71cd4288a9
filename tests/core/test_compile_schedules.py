"""`compress(..., compile=True)`: schedules and feedback in one compiled piece, with the same results."""

import copy

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import paretorch as pt


def losses(plan: pt.Plan, model: nn.Module, steps: int) -> list[float]:
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.1, momentum=0.9)
    x = torch.randn(16, 20, generator=torch.Generator().manual_seed(1))
    found = []
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(x), torch.arange(16) % 5)
        loss.backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
        found.append(float(loss))
    return found


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5))


@pytest.mark.parametrize(
    "method",
    [pt.ContinuousSparsification(target=0.7, start="uniform"), pt.SMOL(target_bits=2.0)],
    ids=["masks", "bits"],
)
def test_same_training_in_one_graph(method) -> None:
    plain, compiled = network(), network()
    expected = losses(pt.compress(plain, method, steps=12), plain, 12)
    torch._dynamo.reset()
    counters.clear()
    plan = pt.compress(compiled, method, steps=12, compile=True)
    found = losses(plan, compiled, 12)
    assert found == pytest.approx(expected, rel=1e-4)
    assert counters["stats"]["unique_graphs"] == 1, "compiled more than once"
    assert not counters["graph_break"]


def test_nothing_is_compiled_unasked() -> None:
    torch._dynamo.reset()
    counters.clear()
    model = network()
    losses(pt.compress(model, pt.ContinuousSparsification(target=0.7), steps=4), model, 4)
    assert counters["stats"]["unique_graphs"] == 0


def test_copies_of_a_compiled_plan_go_on() -> None:
    model = network()
    plan = pt.compress(model, pt.ContinuousSparsification(target=0.7, start="uniform"), steps=8, compile=True)
    losses(plan, model, 2)
    twin = copy.deepcopy(model)
    assert losses(pt.Plan.of(twin), twin, 3) == losses(plan, model, 3)
