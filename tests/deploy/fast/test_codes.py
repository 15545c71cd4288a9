"""Codes and integers, and the instructions that turn one into the other."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paretorch.deploy.fast.codes import WIDTHS, WORD, decode, encode, instructions, largest
from tests.deploy.fast import ptx

GRIDS = [(width, odd) for width in WIDTHS for odd in (True, False)]


@pytest.mark.parametrize(("width", "odd"), GRIDS)
def test_every_integer_of_the_grid_has_a_code(width, odd) -> None:
    top = largest(width, odd)
    integers = torch.arange(-top, top + 1, 2 if odd else 1)
    codes = encode(integers, width, odd)
    assert int(codes.min()) >= 0
    assert int(codes.max()) < 1 << width
    assert len(codes.unique()) == len(integers)
    assert torch.equal(decode(codes, width, odd), integers)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_odd_grid_wastes_no_code(width) -> None:
    assert sorted(decode(torch.arange(1 << width), width, True).tolist()) == list(
        range(1 - (1 << width), 1 << width, 2)
    )


@pytest.mark.parametrize(("width", "odd"), GRIDS)
def test_the_instructions_give_the_integers_of_every_word(width, odd) -> None:
    words = np.arange(1 << 16, dtype=np.uint32)
    pairs = words | (words[::-1] << 16)
    for index in range(WORD // width):
        got = ptx.run(instructions(width, index, odd), pairs)
        codes = torch.from_numpy(words.astype(np.int64)) >> (width * index) & ((1 << width) - 1)
        wanted = decode(codes, width, odd).numpy()
        assert np.array_equal(ptx.bf16(got & 0xFFFF), wanted)
        assert np.array_equal(ptx.bf16(got >> 16), wanted[::-1])
