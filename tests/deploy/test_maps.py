"""Maps of precisions: rows, columns, taps and blocks of any shape and number cost their entropy."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from paretorch.deploy import load, save, sizes
from paretorch.deploy.codec import slice_groups


def entropy(numbers: np.ndarray) -> float:
    """Bytes of these symbols, coded with their own frequencies."""
    counts = np.unique(numbers, return_counts=True)[1]
    return float(counts @ np.log2(counts.sum() / counts)) / 8


def mixed(shape: tuple[int, ...], block: tuple[int, ...], bits: tuple[int, ...], seed: int = 0) -> tuple[Tensor, float]:
    """Odd codes, all equally frequent, of as many bits as the block has; and their ideal bytes."""
    random = np.random.default_rng(seed)
    places = [-(-length // size) for length, size in zip(shape, block, strict=True)]
    own = random.choice(bits, size=places)
    each = own
    for axis, size in enumerate(block):
        each = np.repeat(each, size, axis=axis)
    each = each[tuple(slice(length) for length in shape)]
    odd = 2 * np.floor(random.random(shape) * 2.0**each) + 1 - 2.0**each
    values = (np.where(each == 0, 0, odd) * 2.0**-each).astype(np.float32)
    return torch.from_numpy(values), float(each.sum()) / 8 + entropy(own)


def roundtrip(weight: Tensor, folder: Path) -> None:
    model, empty = nn.Module(), nn.Module()
    model.register_buffer("w", weight)
    empty.register_buffer("w", torch.zeros_like(weight))
    save(model, folder / "x.pare")
    assert torch.equal(load(folder / "x.pare", into=empty).w, weight)


@pytest.mark.parametrize("bits", [(3, 4, 5), (3, 4, 5, 6), (2, 3, 4, 5, 6, 7, 8)])
@pytest.mark.parametrize("rows", [1_000, 32_000])
def test_bits_per_row_have_no_cliff(rows: int, bits: tuple[int, ...]) -> None:
    weight, ideal = mixed((rows, 64), (1, 64), bits)
    found = sizes({"w": weight}).tensors["w"]
    assert found.total < 1.01 * ideal + 500
    assert found.maps < 1.05 * rows * math.log2(len(bits)) / 8 + 100


@pytest.mark.parametrize(
    ("shape", "block"),
    [
        ((400, 288), (1, 32)),
        ((400, 288), (1, 96)),
        ((300, 250), (1, 25)),
        ((301, 290), (1, 32)),
        ((320, 320), (8, 8)),
        ((320, 320), (16, 40)),
        ((320, 320), (320, 1)),
        ((320, 320), (32, 1)),
        ((64, 64, 3, 3), (1, 16, 3, 3)),
        ((64, 64, 3, 3), (4, 4, 3, 3)),
    ],
)
def test_blocks_cost_a_map_of_blocks(shape: tuple[int, ...], block: tuple[int, ...], tmp_path: Path) -> None:
    weight, ideal = mixed(shape, block, (1, 2, 3, 4))
    assert sizes({"w": weight}).tensors["w"].total < 1.02 * ideal + 150
    roundtrip(weight, tmp_path)


def test_blocks_of_zeros_cost_a_map_of_blocks(tmp_path: Path) -> None:
    weight, ideal = mixed((256, 256), (4, 4), (0, 0, 0, 2))
    found = sizes({"w": weight}).tensors["w"]
    assert found.total < 1.02 * ideal + 150
    floats = torch.where(weight == 0, 0.0, torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    mask = sizes({"w": floats}).tensors["w"].masks
    assert mask < 1.1 * entropy(weight.numpy()[::4, ::4] == 0) + 50
    roundtrip(floats, tmp_path)


def test_a_map_whose_rows_are_alike_costs_less_than_its_entropy() -> None:
    """Blocks of 32 in rows that are all of 1 or 2 bits, or all of 3 or 4."""
    low, _ = mixed((200, 320), (1, 32), (1, 2))
    high, _ = mixed((200, 320), (1, 32), (3, 4), seed=1)
    found = sizes({"w": torch.cat([low, high])}).tensors["w"]
    assert found.maps < 1.1 * (4_000 + 400) / 8 + 60, "a bit per block and one per row, not two per block"


@settings(max_examples=40, deadline=None)
@given(
    shape=st.lists(st.integers(1, 40), min_size=2, max_size=3).map(tuple),
    block=st.tuples(st.integers(1, 9), st.integers(1, 40), st.integers(1, 3)),
    bits=st.lists(st.integers(0, 6), min_size=1, max_size=4).map(tuple),
    seed=st.integers(0, 99),
)
def test_any_blocks_are_restored(
    shape: tuple[int, ...],
    block: tuple[int, int, int],
    bits: tuple[int, ...],
    seed: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    shape = (2 * shape[0], 4 * shape[1], *shape[2:])
    weight, _ = mixed(shape, block[: len(shape)], bits, seed)
    roundtrip(weight, tmp_path_factory.mktemp("maps"))


def test_a_class_that_all_slices_have_left(tmp_path, monkeypatch) -> None:
    # Learning classes ends with each slice in the class that codes it best: in large layers some class is then empty.
    original = slice_groups._classify

    def gapped(cube: np.ndarray, *others: object) -> np.ndarray | None:
        labels = original(cube, *others)
        return None if labels is None else labels * 2

    monkeypatch.setattr(slice_groups, "_classify", gapped)
    layer, again = nn.Linear(64, 256, bias=False), nn.Linear(64, 256, bias=False)
    with torch.no_grad():
        torch.manual_seed(0)
        layer.weight.copy_(torch.randn(256, 64) * (torch.arange(256) % 2)[:, None])
    save(layer, tmp_path / "layer.pare")
    load(tmp_path / "layer.pare", into=again)
    assert torch.equal(again.weight, layer.weight)
