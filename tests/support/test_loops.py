"""Which layers are one, the one weight that stands for them, and the loops that this makes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paretorch.methods.sharing.clusters import cluster, collapse
from paretorch.methods.sharing.similarity import absolute_cosine
from paretorch.support.loops import loops_in_words, stretches


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ([1, 2, 3, 4, 3, 4, 1, 2, 3, 4], "layers 3-4 run twice, then back to 1"),
        ([1, 1, 1, 1, 1, 1], "layer 1 runs 6 times"),
        ([1, 2, 1, 2, 1, 2], "layers 1-2 run 3 times"),
        ([1, 2, 3], "no loop: layers 1-3 run once"),
        ([1], "no loop: layer 1 runs once"),
        ([1, 2, 1, 3], "back to 1, then on to 3"),
        ([1, 2, 3, 1, 2, 4], "back to 1-2, then on to 4"),
        ([1, 2, 3, 1, 1], "back to 1, where layer 1 runs twice"),
        ([1, 1, 2, 2], "layers 1-2 run twice each"),
        ([1, 1, 2, 2, 3, 3, 3], "layers 1-2 run twice each, then layer 3 runs 3 times"),
        ([1, 2, 2, 1], "layer 2 runs twice, then back to 1"),
        ([1, 2, 1, 2, 3, 4], "layers 1-2 run twice"),
        ([1, 1, 2, 1, 3], "layer 1 runs twice, then back to 1, then on to 3"),
        ([1, 2, 3, 4, 1, 2, 3, 3], "back to 1-2, then layer 3 runs twice"),
        ([1, 2, 3, 3, 1, 1, 2, 2], "layer 3 runs twice, then back to 1, where layers 1-2 run twice each"),
        ([1, 2, 2, 1, 2, 2], "layer 2 runs twice, then back to 1, then layer 2 runs twice"),
    ],
)
def test_loops_in_words(order: list[int], words: str) -> None:
    assert loops_in_words(order) == words


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=14))
def test_the_parts_are_the_whole_order(drawn: list[int]) -> None:
    numbers = list(dict.fromkeys(drawn))
    order = [numbers.index(layer) + 1 for layer in drawn]
    parts = stretches(order)
    assert [layer for first, last, times in parts for layer in [*range(first, last + 1)] * times] == order
    words = loops_in_words(order)
    assert words.startswith("no loop") == (len(set(order)) == len(order))


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
