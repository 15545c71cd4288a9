"""How a product is spread over a GPU, by the numbers of an H200."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paretorch.deploy.fast.launch import SETTINGS, Machine, Tuning, choose_splits, choose_stages, launch_grid
from paretorch.deploy.fast.packing import COLUMNS, ROWS
from paretorch.deploy.fast.replacements import random_tiles

H200 = Machine(132, 204 << 10, True)
SIZES = {width: ROWS * COLUMNS * width // 8 for width in (2, 4, 8)}


def of_width(width: int, outputs: int = 4096, inputs: int = 11008) -> object:
    return random_tiles((outputs, inputs), (ROWS, COLUMNS), width, True, "cpu")


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 900), st.integers(1, 300), st.sampled_from([1, 108, 132]), st.integers(1, 6))
def test_programs_fill_the_gpu_and_none_is_without_work(tiles, turns, processors, programs) -> None:
    splits = choose_splits(tiles, turns, processors, programs)
    assert 1 <= splits <= turns
    assert tiles * splits >= 0.6 * min(tiles * turns, programs * processors)


@pytest.mark.parametrize(("outputs", "inputs"), [(4096, 11008), (8192, 28672)])
def test_no_row_tile_is_shared_if_there_are_enough(outputs, inputs) -> None:
    assert choose_splits(outputs // ROWS, inputs // COLUMNS // 8, 132, programs=1) == 1


@pytest.mark.parametrize(("width", "stages"), [(2, 5), (4, 4), (8, 3)])
def test_narrow_tiles_are_requested_further_ahead(width, stages) -> None:
    assert launch_grid(of_width(width), 1, Tuning(1, 8), H200) == (1, stages, 0)
    assert launch_grid(of_width(width), 1, Tuning(4, 2), H200).stages == stages


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(list(SIZES.values())), min_size=1, max_size=3), st.integers(1, 16))
def test_all_stages_fit_into_shared_memory(sizes, warps) -> None:
    stages = choose_stages(sizes, 2048, warps, shared=100_000)
    assert stages == 2 or (stages - 1) * warps * (max(sizes) + 2048) <= 100_000
    assert 2 <= stages <= 6


@pytest.mark.parametrize("width", [2, 4, 8])
def test_a_kernel_that_starts_early_shares_the_multiprocessor(width) -> None:
    _, stages, ahead = launch_grid(of_width(width), 1, Tuning(1, 8, early=True), H200)
    assert (stages - 1) * 8 * (SIZES[width] + COLUMNS * width) <= H200.shared // 2 or stages == 2
    assert 1 <= ahead <= 6, "no more turns than there are"
    assert ahead * 8 * SIZES[width] <= 96 << 10


def test_gpus_that_cannot_start_early_do_not() -> None:
    assert launch_grid(of_width(2), 1, Tuning(early=True), H200._replace(early=False)).ahead == 0


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("batch", [1, 8, 16])
@pytest.mark.parametrize("width", [2, 4, 8])
def test_every_setting_fits_on_an_h200(setting, batch, width) -> None:
    packed = random_tiles((4096, 11008), setting.tile, width, True, "cpu")
    stages = launch_grid(packed, batch, setting.tuning, H200).stages
    beside = setting.tile[1] * (width if batch == 1 else 2 * batch)
    needed = (stages - 1) * setting.tuning.warps * (packed.words[(8, 4, 2).index(width)][0].nbytes + beside)
    assert needed <= 227 << 10


def test_what_the_tuning_says_is_kept() -> None:
    assert launch_grid(of_width(4), 1, Tuning(2, 4, stages=3, splits=7), H200) == (7, 3, 0)
