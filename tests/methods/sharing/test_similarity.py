"""Similarity, the thesis' worked example, other templates for the same network, the recurrence regulariser."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from paretorch import ContinuousSparsification, compress
from paretorch.errors import ConfigError
from paretorch.methods.sharing import SoftSharing, layer_similarity, reparametrize
from paretorch.methods.sharing.similarity import absolute_cosine, cluster, collapse, recurrence, recurrence_slope
from tests.methods.sharing.cases import attach, build

# α of section 3.2.4: one column a layer there, one row per layer here.
ALPHA = torch.tensor(
    [
        [0.8, 0.1, -1.2, 0.2, -0.4],
        [-0.2, 0.6, 0.3, 1.2, -0.3],
        [0.6, -0.2, -0.9, -0.4, 0.7],
        [0.2, 1.2, -0.3, 2.4, -0.1],
    ],
    dtype=torch.float64,
).T


def test_the_similarities_of_the_example() -> None:
    a, b, c = 0.0566, 0.1556, 0.4075  # printed cut off: 0.05, 0.15, 0.40
    expected = [[1, a, 1, a, b], [a, 1, a, 1, c], [1, a, 1, a, b], [a, 1, a, 1, c], [b, c, b, c, 1]]
    torch.testing.assert_close(absolute_cosine(ALPHA), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=5e-5)


def test_the_reparametrization_of_the_example() -> None:
    """Bᵀ = α α'ᵀ (α' α'ᵀ)⁻¹ with α' 3 × 5, as printed but for the entry (3, 2), which is −0.3."""
    new = torch.tensor([[1, 0, 1, 0, 0], [0, 1, 0, 1, 0], [0, 0, 0, 0, 1]], dtype=torch.float64)
    b = (ALPHA.T @ new.T @ torch.linalg.inv(new @ new.T)).T
    printed = [[-0.2, 0.05, -0.15, -0.05], [0.15, 0.9, -0.3, 1.8], [-0.4, -0.3, 0.7, -0.1]]
    torch.testing.assert_close(b, torch.tensor(printed, dtype=torch.float64))


def test_the_example_folds_exactly_with_signed_scales() -> None:
    labels = cluster([absolute_cosine(ALPHA)], 0.99, None)[0]
    assert labels == [0, 1, 0, 1, 2]
    templates = torch.randn(4, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    gram = templates @ templates.T
    for members, scales in (([0, 2], [1.0, -1.5]), ([1, 3], [1.0, 2.0])):
        direction, found = collapse(ALPHA[members], gram)
        torch.testing.assert_close(found, torch.tensor(scales, dtype=torch.float64))
        torch.testing.assert_close(direction, ALPHA[members[0]])


def test_averaging_as_printed_would_change_the_function() -> None:
    averaged = ALPHA[[0, 2]].mean(0)
    assert torch.linalg.norm(averaged - ALPHA[0]) > 1.0


def test_a_layer_of_zeros_is_like_no_other() -> None:
    rows = torch.tensor([[0.0, 0.0], [1.0, 2.0], [-2.0, -4.0]])
    torch.testing.assert_close(absolute_cosine(rows), torch.tensor([[0.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 1.0, 1.0]]))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 7))
def test_similarity_is_symmetric_bounded_and_blind_to_scales(seed: int, k: int, layers: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(layers, k, generator=generator, dtype=torch.float64)
    scales = torch.randn(layers, 1, generator=generator, dtype=torch.float64) + 0.01
    s = absolute_cosine(rows)
    torch.testing.assert_close(s, s.T)
    assert ((s >= 0) & (s <= 1)).all()
    torch.testing.assert_close(s, absolute_cosine(rows * scales))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5))
def test_any_invertible_change_keeps_the_weights(seed: int, k: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    templates = torch.randn(k, 3, 2, generator=generator, dtype=torch.float64)
    alpha = torch.randn(4, k, generator=generator, dtype=torch.float64)
    change = torch.randn(k, k, generator=generator, dtype=torch.float64) + 3 * torch.eye(k)
    try:
        new_templates, new_alpha = reparametrize(templates, alpha, change)
    except ConfigError:
        return
    before = torch.einsum("lk,kij->lij", alpha, templates)
    torch.testing.assert_close(torch.einsum("lk,kij->lij", new_alpha, new_templates), before, rtol=1e-6, atol=1e-8)


def test_a_network_with_other_templates_is_the_same_network() -> None:
    network = build("linear")
    attach(network, "fewer")
    x = torch.randn(3, 6)
    before = network(x)
    mixes = [m for m in network.modules() if type(m).__name__ == "Mix"]
    templates = torch.stack([network.paretorch_template_0_0, network.paretorch_template_0_1]).detach()
    alpha = torch.stack([mix.s for mix in mixes]).detach()
    new_templates, new_alpha = reparametrize(templates, alpha, torch.tensor([[2.0, 1.0], [-1.0, 0.5]]))
    with torch.no_grad():
        network.paretorch_template_0_0.copy_(new_templates[0])
        network.paretorch_template_0_1.copy_(new_templates[1])
        for mix, row in zip(mixes, new_alpha, strict=True):
            mix.s.copy_(row)
    assert not torch.equal(new_alpha, alpha)
    torch.testing.assert_close(network(x), before)


@pytest.mark.parametrize(
    "change", [[[1.0, 2.0], [2.0, 4.0]], [[0.0, 0.0], [0.0, 0.0]], [[float("nan"), 0.0], [0.0, 1.0]]]
)
def test_singular_changes_are_refused(change: list[list[float]]) -> None:
    with pytest.raises(ConfigError, match="singular"):
        reparametrize(torch.ones(2, 3), torch.ones(4, 2), torch.tensor(change))
    with pytest.raises(ConfigError, match="2 × 2"):
        reparametrize(torch.ones(2, 3), torch.ones(4, 2), torch.eye(3))
    with pytest.raises(ConfigError, match="one row per layer"):
        reparametrize(torch.ones(2, 3), torch.ones(2, 4), torch.eye(2))


def pairs(rows: torch.Tensor) -> torch.Tensor:
    """Σ S by a loop over all pairs."""
    total = torch.zeros((), dtype=rows.dtype)
    for one in rows:
        for other in rows:
            total = total + (one @ other).abs() / (one.norm() * other.norm())
    return total


def test_the_regulariser_is_the_sum_over_pairs_and_its_slope_is_the_gradient() -> None:
    rows = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3), requires_grad=True)
    torch.testing.assert_close(recurrence(rows), pairs(rows))
    (expected,) = torch.autograd.grad(pairs(rows), rows)
    torch.testing.assert_close(recurrence_slope(rows.detach()), expected)


def test_an_orthogonal_start_is_moved() -> None:
    assert recurrence_slope(torch.eye(3)).abs().sum() > 1.0


def test_a_layer_of_zeros_is_not_thrown_far() -> None:
    slope = recurrence_slope(torch.tensor([[3.0, 4.0], [0.0, 0.0], [1e-16, 0.0], [1.0, 0.0]]))
    assert not slope[1:3].any()
    assert slope[[0, 3]].abs().sum() > 0.1
    network = build("linear")
    nn.init.zeros_(network[3].weight)  # as the last layer of a residual branch may begin
    plan = compress(network, SoftSharing(templates=2, start="fit", recurrence=0.01), steps=3)
    for _ in range(3):
        plan.step()
    assert all(value.abs().max() < 10.0 for name, value in network.state_dict().items() if name.endswith("sharing.s"))


def test_a_hundred_layers_are_two_products() -> None:
    rows = torch.randn(100, 100, generator=torch.Generator().manual_seed(0))
    with torch.profiler.profile() as profile:
        recurrence_slope(rows)
    assert sum(event.count for event in profile.key_averages()) < 60


def test_the_plan_adds_the_regulariser() -> None:
    """With the reward alone, all layers become alike."""
    network = build("linear")
    plan = compress(network, SoftSharing(recurrence=0.2, drops=()), steps=200)
    (start,) = layer_similarity(network)
    price = plan.penalty()
    torch.testing.assert_close(price, -0.2 * start.matrix.sum(), rtol=1e-5, atol=1e-6)
    for _ in range(200):
        plan.step()
    (end,) = layer_similarity(network)
    assert end.matrix.min() > 0.99 > start.matrix.min()
    assert plan.penalty() < price


def test_unshared_networks_are_compared_by_their_weights() -> None:
    network = build("linear")
    with torch.no_grad():
        network[3].weight.copy_(-2 * network[1].weight)
    (found,) = layer_similarity(network)
    assert found.layers == ("1.weight", "3.weight", "5.weight", "7.weight")
    torch.testing.assert_close(found.matrix[0, 1], torch.tensor(1.0))
    assert found.matrix[0, 2] < 0.6
    with pytest.raises(ConfigError, match="no two layers"):
        layer_similarity(nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="takes a network, not list"):
        layer_similarity([network])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="exclude='haed' matches nothing"):
        layer_similarity(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), exclude="haed")
    with pytest.raises(ConfigError, match="by=3: give a function"):
        layer_similarity(network, by=3)  # type: ignore[arg-type]


def test_weights_that_are_computed_are_not_told_as_unequal() -> None:
    pruned = build("linear")
    plan = compress(pruned, ContinuousSparsification(target=0.5), steps=4)
    with pytest.raises(ConfigError, match=r"0\.weight is computed .* plan\.finalize\(\)"):
        layer_similarity(pruned)
    assert len(layer_similarity(plan.finalize())[0].layers) == 4
