"""Every pruning rival meets its target exactly."""

import pytest
import torch
from torch import Tensor, nn

from paretorch import SMOL, Plan, compress
from paretorch.methods.sparsity.rivals import DNW, rival
from tests.contract.cases import STEPS
from tests.contract.loop import train
from tests.contract.rivals import NETWORKS, PRUNERS, started
from tests.decisions import largest_group, relaxed


def effective(plan: Plan) -> list[Tensor]:
    values = plan.dense_state_dict()
    return [values[name] for name in relaxed(plan.model)]


def zeros(plan: Plan) -> tuple[int, int]:
    values = effective(plan)
    return sum(int((value == 0).sum()) for value in values), sum(value.numel() for value in values)


@pytest.mark.parametrize("model", NETWORKS)
@pytest.mark.parametrize("rival", list(PRUNERS))
def test_target_is_exact_and_stays(rival: str, model: str) -> None:
    network, plan, optimizer, x = started(rival, model, STEPS)
    plan.harden(optimizer)
    method = next(m for m in plan.methods() if not isinstance(m, SMOL))
    dropped, total = zeros(plan)
    if method.target is not None:
        grouped = rival in ("mp-channel", "gmp-block")
        largest = largest_group(network, "sparsity") if grouped else 1.0
        layers = len(relaxed(network)) if getattr(method, "scope", "global") == "layer" else 1
        assert abs(dropped - method.target * total) <= largest * layers / 2
        assert plan.metrics()["sparsity"] == pytest.approx(dropped / total, abs=1e-6)
        assert 0 < dropped < total
    kept = [value != 0 for value in effective(plan)]
    train(network, plan, optimizer, x, 3)
    after = [value != 0 for value in effective(plan)]
    assert not any(bool((new & ~old).any()) for old, new in zip(kept, after, strict=True)), (
        "dropped weights stay dropped"
    )


@pytest.mark.parametrize("most", [2**20, 2**10])
@pytest.mark.parametrize("scope", ["global", "layer"])
def test_large_layers_are_sampled_and_met_exactly(scope: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rival, "WHOLE", most)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(300, 200), nn.Linear(200, 10))
    plan = compress(network, DNW(target=0.9, scope=scope), steps=STEPS)
    assert plan.metrics()["sparsity"] == pytest.approx(0.9, abs=0.01 if most < 62000 else 1e-4)
    plan.harden()
    assert zeros(plan) == (55800, 62000)
