"""Options that cannot work are refused before anything is touched; budgets in bytes are kept."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from paretorch import SMOL, compress
from paretorch.deploy import encoded_size
from paretorch.errors import ConfigError
from paretorch.methods.registry import entries
from paretorch.methods.sparsity.rivals import (
    AMC,
    DNW,
    ST3,
    STR,
    GradualMagnitude,
    HardConcrete,
    MagnitudePruning,
    NetworkSlimming,
    StochasticSparsification,
)
from tests.contract.cases import build
from tests.contract.loop import equal, snapshot

ALL = [entry.method for name, entry in entries("sparsity").items() if name != "cs"]


@pytest.mark.parametrize("kind", ALL)
def test_targets_out_of_range(kind: Any) -> None:
    for target in (-0.1, 1.0):
        with pytest.raises(ConfigError, match="share of weights to drop"):
            compress(build("linear"), kind(target=target), steps=4)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (MagnitudePruning(), "needs a target"),
        (AMC(), "needs a target"),
        (AMC(target=0.9, most=0.8), "from 0.9 to just below 1"),
        (AMC(target=0.9, episodes=0), "1 or more"),
        (AMC(target=0.9, warmup=-1), "0 or more"),
        (DNW(), "needs a target"),
        (GradualMagnitude(target=0.5, begin=0.5, end=0.5), "begin < end"),
        (GradualMagnitude(target=0.5, every=0), "1 or more"),
        (GradualMagnitude(target=0.5, initial=0.6), "from 0 to the target"),
        (MagnitudePruning(target=0.5, scope="channel"), '"global" or "layer"'),
        (MagnitudePruning(target=0.5, group="network"), "within a layer"),
        (ST3(target=0.5, group="channel"), "single weights"),
        (ST3(target=0.5, anneal=0.0), "anneal"),
        (STR(decay=-1.0), "0 or more"),
        (HardConcrete(penalty=-1.0), "0 or more"),
        (HardConcrete(open_at_start=1.0), "between 0 and 1"),
        (NetworkSlimming(target=0.5, penalty=-1.0), "0 or more"),
        (StochasticSparsification(penalty=-1.0), "0 or more"),
        (StochasticSparsification(lr=-1.0), "positive rate"),
        (StochasticSparsification(init=float("nan")), "give a number"),
        (HardConcrete(momentum=2.0), "0 to 1"),
        (HardConcrete(open_at_start="wide"), "between 0 and 1"),  # type: ignore[arg-type]
        (NetworkSlimming(target=0.5, lr=float("nan")), "positive rate"),
        (NetworkSlimming(target=0.5, penalty="dear"), "0 or more"),  # type: ignore[arg-type]
        (STR(momentum=-1.0), "0 to 1"),
        (STR(init="low"), "give a number"),  # type: ignore[arg-type]
        (STR(target=0.9999), "would drop everything"),
        (ST3(target=0.5, anneal="late"), "anneal"),  # type: ignore[arg-type]
        (GradualMagnitude(target=0.5, begin="late"), "begin < end"),  # type: ignore[arg-type]
        (GradualMagnitude(target=0.5, initial="low"), "from 0 to the target"),  # type: ignore[arg-type]
        (AMC(target=0.9, most="all"), "from 0.9 to just below 1"),  # type: ignore[arg-type]
    ],
)
def test_refused_with_the_model_untouched(method: Any, message: str) -> None:
    network = build("linear")
    before = snapshot(network)
    with pytest.raises(ConfigError, match=message):
        compress(network, method, steps=4)
    assert equal(snapshot(network), before)


@pytest.mark.parametrize("method", [ST3(target=0.5), STR(), NetworkSlimming(target=0.5)])
def test_methods_that_rescale_stay_off_grids(method: Any) -> None:
    with pytest.raises(ConfigError, match="off a grid"):
        compress(build("linear"), method, SMOL(target_bits=2.0), steps=4)


@pytest.mark.parametrize("kind", ALL)
def test_a_budget_in_bytes_needs_no_target(kind: Any) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(40, 60), nn.ReLU(), nn.Linear(60, 10))
    plan = compress(network, kind(), steps=4, budget=4000)
    plan.step()
    plan.harden()
    assert 0.9 * 4000 <= encoded_size(plan.finalize().state_dict()) <= 4000


@settings(max_examples=25, deadline=None)
@given(target=st.floats(0.0, 0.99), seed=st.integers(0, 1000), layers=st.booleans())
def test_magnitudes_drop_exactly_the_target(target: float, seed: int, layers: bool) -> None:
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(5, 9), nn.Linear(9, 4))
    plan = compress(network, MagnitudePruning(target=target, scope="layer" if layers else "global"), steps=4)
    plan.harden()
    kept = [int((layer.weight != 0).sum()) for layer in network]
    sizes = [45, 36]
    for got, size in zip(kept, sizes, strict=True) if layers else [(sum(kept), sum(sizes))]:
        assert abs(got - (1 - target) * size) <= 0.5 + 1e-6
    largest_gone = max(float(w.abs()[v == 0].max()) if bool((v == 0).any()) else 0.0 for w, v in _pairs(network))
    smallest_kept = min(float(w.abs()[v != 0].min()) if bool((v != 0).any()) else 9.0 for w, v in _pairs(network))
    assert layers or largest_gone <= smallest_kept


def _pairs(network: nn.Sequential) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(layer.paretorch_weight.latent.detach(), layer.weight.detach()) for layer in network]
