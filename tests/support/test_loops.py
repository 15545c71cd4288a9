"""The loops of a folded network in words."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paretorch.support.text import loops_in_words, stretches


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
def test_the_parts_make_up_the_whole_order(drawn: list[int]) -> None:
    numbers = list(dict.fromkeys(drawn))
    order = [numbers.index(layer) + 1 for layer in drawn]
    parts = stretches(order)
    assert [layer for first, last, times in parts for layer in [*range(first, last + 1)] * times] == order
    words = loops_in_words(order)
    assert words.startswith("no loop") == (len(set(order)) == len(order))
