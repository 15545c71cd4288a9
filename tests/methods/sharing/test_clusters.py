"""Which layers form one cluster, and the weight that replaces them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paretorch.methods.sharing.similarity import absolute_cosine, cluster, collapse


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 7), st.floats(0.0, 1.0))
def test_members_of_a_group_are_alike(seed: int, layers: int, threshold: float) -> None:
    rows = torch.randn(layers, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    s = absolute_cosine(rows)
    (labels,) = cluster([s], threshold, None)
    assert labels[0] == 0
    assert sorted(set(labels)) == list(range(max(labels) + 1))
    for i in range(layers):
        for j in range(layers):
            assert labels[i] != labels[j] or i == j or s[i, j] >= threshold - 1e-6
    for left in range(1, layers + 1):
        assert len(set(cluster([s], None, left)[0])) == left


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 5))
def test_collinear_rows_collapse_exactly(seed: int, count: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(4, generator=generator, dtype=torch.float64)
    scales = torch.randn(count, generator=generator, dtype=torch.float64)
    scales = torch.where(scales.abs() < 0.05, 0.5, scales)
    templates = torch.randn(4, 9, generator=generator, dtype=torch.float64)
    found, own = collapse(scales[:, None] * direction, templates @ templates.T)
    torch.testing.assert_close(own[:, None] * found, scales[:, None] * direction, rtol=1e-7, atol=1e-9)
    assert own[0] == pytest.approx(1.0)
