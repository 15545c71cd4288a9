"""Rounding on a budget: of weights, of bits, of bytes."""

import math
from collections.abc import Mapping, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from paretorch import SMOL, ContinuousSparsification
from paretorch.core.attach.sites import find_sites
from paretorch.core.compress import compress
from paretorch.core.finish.byte_budget import ByteBudget, assign_targets
from paretorch.core.rounding import keep_best, raise_levels
from paretorch.edits import Edit
from paretorch.errors import ConfigError, DivergenceError


@settings(max_examples=80, deadline=None)
@given(
    groups=st.lists(st.tuples(st.integers(-3, 3), st.integers(1, 5)), min_size=1, max_size=30),
    share=st.floats(0, 1),
)
def test_keeps_the_best_as_near_as_groups_allow(groups: list[tuple[int, int]], share: float) -> None:
    scores, sizes = (torch.tensor(column, dtype=torch.float32) for column in zip(*groups, strict=True))
    budget = share * float(sizes.sum())
    half = len(groups) // 2
    keep = torch.cat(keep_best([scores[:half], scores[half:]], [sizes[:half], sizes[half:]], budget))
    assert not (keep.any() and (~keep).any()) or float(scores[keep].min()) >= float(scores[~keep].max())
    order = sorted(range(len(groups)), key=lambda i: (-groups[i][0], i))
    prefix = [0.0, *torch.cumsum(sizes[order], 0).tolist()]
    nearest = min(abs(total - budget) for total in prefix)
    assert abs(float(sizes[keep].sum()) - budget) == pytest.approx(nearest, abs=1e-6)
    assert keep[order].long().diff().le(0).all(), "ties by index"


@given(
    st.lists(st.sampled_from([-1.5, -0.0, 0.0, 0.25, 2.0]), min_size=1, max_size=40),
    st.sampled_from([1.0, 3.0]),
    st.floats(0.0, 1.2),
)
@settings(max_examples=100, deadline=None)
def test_groups_of_one_size_are_kept_as_by_sorting(scores: list[float], size: float, share: float) -> None:
    score, budget = torch.tensor(scores), share * size * len(scores)
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    count = min(range(len(scores) + 1), key=lambda n: (abs(n * size - budget), -n))
    (kept,) = keep_best([score], [torch.full_like(score, size)], budget)
    assert sorted(order[:count]) == kept.nonzero().flatten().tolist()


def test_a_score_that_is_not_finite_is_refused() -> None:
    with pytest.raises(DivergenceError, match="no longer finite"):
        keep_best([torch.tensor([1.0, math.nan])], [torch.ones(2)], 1.0)


@settings(max_examples=50, deadline=None)
@given(budget=st.integers(-2, 30), edges=st.lists(st.floats(-7, 7), min_size=1, max_size=20))
def test_levels_are_raised_to_just_below_the_budget(budget: int, edges: list[float]) -> None:
    def cost(offset: float) -> float:
        return float(sum(offset >= edge for edge in edges))

    low, high = raise_levels(cost, budget, -8.0, 8.0)
    if cost(8.0) <= budget:
        assert low == high == 8.0
        return
    assert cost(high) > budget
    assert cost(low) <= budget or (budget < 0 and low == -8.0)
    assert high - low < 1e-7


def four_bytes_a_weight(state: Mapping[str, Tensor], edits: Sequence[Edit] = ()) -> int:
    return 100 + sum(4 * int((value != 0).sum()) for value in state.values())


def dense_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(30, 40, bias=False), nn.Linear(40, 20, bias=False))


@pytest.mark.parametrize("target", [400, 1500, 4000, 7000])
def test_harden_fits_the_bytes(target: int) -> None:
    plan = compress(dense_net(), ContinuousSparsification(init=0.3), steps=10, budget=target, meter=four_bytes_a_weight)
    plan.harden()
    assert 0.95 * target <= four_bytes_a_weight(plan.dense_state_dict()) <= target
    state = plan.finalize().state_dict()
    assert 0.95 * target <= four_bytes_a_weight(state) <= target


def test_a_given_target_is_scaled_to_the_bytes() -> None:
    plan = compress(dense_net(), ContinuousSparsification(target=0.2), steps=10, budget=2000, meter=four_bytes_a_weight)
    small = plan.finalize()
    assert 1900 <= four_bytes_a_weight(small.state_dict()) <= 2000


def test_a_given_target_is_never_exceeded_to_fill_the_file() -> None:
    method = ContinuousSparsification(target=0.7)
    plan = compress(dense_net(), method, steps=10, budget=5000, meter=four_bytes_a_weight)
    plan.harden()
    assert float(plan.metrics()["sparsity"]) == pytest.approx(0.7)
    assert four_bytes_a_weight(plan.finalize().state_dict()) == 100 + 4 * 600


def test_bytes_that_cannot_be_reached() -> None:
    def fixed(state: Mapping[str, Tensor], edits: Sequence[Edit]) -> int:
        return 5000 if any(bool(value.any()) for value in state.values()) else 100

    plan = compress(dense_net(), ContinuousSparsification(), steps=10, budget=2000, meter=fixed)
    with pytest.raises(ConfigError, match="cannot get below 5000 bytes"):
        plan.harden()


def test_trim_zeroes_the_smallest_until_it_fits() -> None:
    state = {
        "a": torch.tensor([[3.0, -0.1], [0.0, 0.5]]),
        "b": torch.tensor([0.01, 0.02]),
        "c": torch.tensor([[0.5, -4.0]]),
    }
    ByteBudget(100 + 4 * 5, four_bytes_a_weight).trim(state, ["a", "c"], ())
    assert state["a"].tolist() == [[3.0, 0.0], [0.0, 0.0]]  # 0.1 goes, then the first of two 0.5
    assert state["c"].tolist() == [[0.5, -4.0]]
    assert state["b"].tolist() == pytest.approx([0.01, 0.02])
    before = {name: value.clone() for name, value in state.items()}
    ByteBudget(500, four_bytes_a_weight).trim(state, ["a", "c"], ())
    assert all(torch.equal(before[name], state[name]) for name in state)


@pytest.mark.parametrize(
    ("sparsity", "bits"), [(None, None), (0.6, None), (0.9, None), (None, 0.5), (None, 1.5), (0.7, 0.9)]
)
def test_what_is_given_is_kept_and_the_rest_follows(sparsity: float | None, bits: float | None) -> None:
    """The mask and the codes of both targets together take what the budget leaves, whichever of them was asked for."""
    methods = (ContinuousSparsification(target=sparsity), SMOL(target_bits=bits))
    model = nn.Linear(100, 100, bias=False)
    budget = 100 + 10_000 * 2 // 8  # two bits per weight
    sites = {"sparsity": find_sites(model), "precision": find_sites(model)}
    masks, codes = assign_targets(methods, model, sites, budget, lambda state, edits: 100)
    assert sparsity is None or masks.target == sparsity
    assert bits is None or codes.target_bits == bits
    density = 1 - masks.target
    shares = torch.tensor([density, masks.target])
    cost = float(-torch.xlogy(shares, shares).sum()) / math.log(2) + codes.target_bits + 0.6 * density
    if None in (sparsity, bits):
        most = 1.0 if bits is None else min(bits, 1.0)
        assert cost == pytest.approx(2.0, abs=0.01) or (density == pytest.approx(most) and cost < 2.0)


@pytest.mark.parametrize("group", ["weight", "channel"])
def test_generous_budgets_buy_bits_and_small_ones_zeros(group: str) -> None:
    methods = (ContinuousSparsification(), SMOL(group=group))
    model = nn.Linear(100, 100, bias=False)
    sites = {"sparsity": find_sites(model), "precision": find_sites(model)}

    def split(bits_per_weight: float) -> tuple[float, float]:
        budget = 100 + int(10_000 * bits_per_weight / 8)
        masks, codes = assign_targets(methods, model, sites, budget, lambda state, edits: 100)
        return 1.0 - masks.target, codes.target_bits

    found = [split(bits) for bits in (0.5, 1.0, 1.5, 1.75, 2.0, 2.25, 2.5, 4.0)]
    densities, bits = zip(*found, strict=True)
    assert list(densities) == sorted(densities)
    assert densities[0] < 0.2
    assert densities[-1] == 1.0
    assert densities[-2] == (1.0 if group == "channel" else pytest.approx(0.5, abs=0.2))
    kept = [one / density for density, one in found]
    assert group == "channel" or min(kept) > 2.4, "by weight, masks and maps cost too much to keep weights of few bits"
    map_bits = 0.6 if group == "weight" else 0.16
    assert bits[-1] == pytest.approx(4.0 - map_bits, abs=0.01)
