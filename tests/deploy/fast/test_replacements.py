"""Which setting is chosen, with given times."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
import torch

from paretorch.deploy.fast import PackedLinear, replacements
from paretorch.deploy.fast.launch import SETTINGS, Setting, Tuning, default_tuning
from paretorch.deploy.fast.packing import COLUMNS, ROWS, Order, pack, unpack
from paretorch.deploy.fast.replacements import random_tiles
from paretorch.errors import ConfigError
from tests.deploy.fast.grids import by_channel, on_the_grid

X = torch.randn(1, 300).bfloat16()


class Clock:
    """Milliseconds by the name of a setting; what is not named takes 2."""

    def __init__(self, **times: float) -> None:
        self.times = times
        self.asked: list[list[str]] = []

    def __call__(self, calls: Mapping[str, object]) -> dict[str, list[float]]:
        self.asked.append(list(calls))
        return {name: [self.times.get(name, 2.0)] * 4 for name in calls}


@pytest.fixture(autouse=True)
def _forget(monkeypatch) -> None:
    monkeypatch.setattr(replacements, "_tuned", {})


def layer(bits: int = 4, outputs: int = 70, inputs: int = 300) -> PackedLinear:
    return PackedLinear(pack(on_the_grid(torch.full((outputs, inputs), bits))))


@pytest.mark.parametrize("best", SETTINGS)
def test_the_fastest_is_taken(best) -> None:
    found = replacements.fastest_setting(layer(), X, Clock(**{str(best): 1.0}))
    assert found == (best, 1.0, len(SETTINGS))


def test_a_setting_that_is_not_clearly_faster_is_not_chosen() -> None:
    own = layer()
    found = replacements.fastest_setting(own, X, Clock(**{str(SETTINGS[3]): 1.95}))
    assert found.setting == Setting(own.tuning)
    assert found.milliseconds == 2.0


def test_its_own_setting_is_among_those_measured() -> None:
    own = layer()
    own.tuning = Tuning(3, 4, 5, 2)
    clock = Clock()
    assert replacements.fastest_setting(own, X, clock).setting.tuning == own.tuning
    assert len(clock.asked[0]) == len(SETTINGS) + 1


def test_layers_alike_are_measured_once() -> None:
    clock = Clock()
    several = torch.randn(5, 300).bfloat16()
    cases = [(layer(), X), (layer(2), X), (layer(4, 71), X), (layer(), several)]
    for own, x in [*cases, *cases]:
        replacements.fastest_setting(own, x, clock)
    replacements.fastest_setting(layer(), several[:3], clock)
    assert len(clock.asked) == len(cases)


def test_settings_that_do_not_run_are_left_out(monkeypatch) -> None:
    right = PackedLinear.forward

    def forward(self: PackedLinear, x: torch.Tensor) -> torch.Tensor:
        if self.tuning.warps == 8:
            raise MemoryError("no room")
        return right(self, x)

    monkeypatch.setattr(PackedLinear, "forward", forward)
    clock = Clock(**{str(SETTINGS[2]): 0.1})
    assert replacements.fastest_setting(layer(), X, clock).setting.tuning.warps != 8
    assert not any("8 warps" in name for name in clock.asked[0])
    monkeypatch.setattr(PackedLinear, "forward", lambda self, x: 1 / 0)
    with pytest.raises(ConfigError, match="does not run here"):
        replacements.measure_settings(layer(), X, clock, SETTINGS)


def test_other_tiles_only_where_they_need_no_packing_to_be_measured() -> None:
    mixed = PackedLinear(pack(on_the_grid(by_channel(150, 300, (2, 4)))))
    clock = Clock()
    replacements.fastest_setting(mixed, X, clock)
    assert mixed.order is not Order.FULL
    assert all(f"tiles {ROWS}x{COLUMNS}" in name for name in clock.asked[0])


def test_weights_take_turns_so_that_they_come_from_memory(monkeypatch) -> None:
    monkeypatch.setattr(replacements, "_copies", lambda layer, device: 3)
    seen: list[int] = []
    monkeypatch.setattr(PackedLinear, "forward", lambda self, x: seen.append(self.words4.data_ptr()))

    def clock(calls: Mapping[str, object]) -> dict[str, list[float]]:
        seen.clear()
        calls[str(SETTINGS[1])]()
        return Clock()(calls)

    found = replacements.measure_settings(layer(), X, clock, SETTINGS)
    assert len(set(seen)) == len(seen) == 3
    assert found.milliseconds == 2.0 / 3, "of one call"


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_random_tiles_have_the_form_of_packed_ones(bits) -> None:
    own = layer(bits)
    other, real = random_tiles((70, 300), (64, 128), bits, True, "cpu"), pack(own.weight, 64, 128)
    assert other.order is real.order is Order.FULL
    assert other.tile == real.tile
    assert torch.equal(other.spans, real.spans)
    assert torch.equal(other.rows, real.rows)
    assert other.bytes == real.bytes
    assert unpack(other).abs().max() < 2


def test_settings_are_few_distinct_and_say_what_they_are() -> None:
    assert len({str(setting) for setting in SETTINGS}) == len(SETTINGS) <= 6
    assert str(Setting(Tuning(1, 8, 3, 2, early=True))) == "tiles 32x256, 1 × 8 warps, 3 stages, 2 splits, early"
    assert str(Setting(Tuning(4, 2), (64, 128))) == "tiles 64x128, 4 × 2 warps"


def test_unmeasured_small_layers_have_smaller_programs_than_large_ones(monkeypatch) -> None:
    small = layer()
    assert small.tuning == default_tuning(small.packed) == SETTINGS[0].tuning
    monkeypatch.setattr("paretorch.deploy.fast.launch._SMALL", 100)
    assert layer().tuning == SETTINGS[1].tuning
    assert not small.tuning.early, "what no sweep found better is not assumed"


def test_the_account_names_every_word_of_a_setting() -> None:
    assert all(
        re.fullmatch(r"tiles \d+x\d+, \d × \d warps(, \d stages)?(, early)?", str(setting)) for setting in SETTINGS
    )
