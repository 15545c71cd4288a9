"""The energy estimate against the numbers that section 5.4.4 prints."""

import pytest

from paretorch import SMOL, compress, report
from paretorch.errors import ConfigError
from paretorch.methods.precision.energy import estimate_energy
from tests.contract.cases import build

SMOL_LAYER = {1: 0.74, 2: 0.245, 3: 0.015}


@pytest.mark.parametrize(("bits", "power", "latency"), [(0, 0, 0), (1, 1, 1), (2, 2.41, 1.91), (3, 3.83, 2.10)])
def test_the_printed_factors(bits: int, power: float, latency: float) -> None:
    found = estimate_energy({bits: 7})
    assert (found.power, found.latency) == pytest.approx((power, latency))
    assert found.energy == pytest.approx(power * latency)


def test_the_printed_example() -> None:
    ratio = estimate_energy(SMOL_LAYER, control=0.0).relative_to(estimate_energy({2: 1}))
    assert ratio.power == pytest.approx(0.575, abs=0.0015)
    assert 1 - ratio.latency == pytest.approx(0.36, abs=0.01)  # 0.351 by the printed factors
    assert 1 - ratio.energy == pytest.approx(0.627, abs=0.0015)
    assert ratio.extrapolated == 0


def test_control_is_paid_by_mixed_precisions_alone() -> None:
    plain, mixed = estimate_energy(SMOL_LAYER, control=0.0), estimate_energy(SMOL_LAYER)
    assert mixed.energy == pytest.approx(1.25 * plain.energy)
    assert (mixed.power, mixed.latency) == (plain.power, plain.latency)
    assert estimate_energy({0: 3, 2: 1, 4: 0}, control=1.0).energy == estimate_energy({0: 3, 2: 1}, control=0.0).energy
    assert 1 - mixed.relative_to(estimate_energy({2: 1})).energy == pytest.approx(1 - 1.25 * 0.3737, abs=1e-3)


def test_above_three_bits_is_an_extrapolation_and_says_so() -> None:
    found = estimate_energy({3: 1, 5: 3}, control=0.0)
    assert found.extrapolated == 0.75
    assert found.power == pytest.approx((3.83 + 3 * (3.83 + 2 * 1.42)) / 4)
    assert found.latency == pytest.approx((2.10 + 3 * (2.10 + 2 * 0.19)) / 4)


def test_whole_bits_may_be_floats() -> None:
    assert estimate_energy({2.0: 3, 4.0: 1}) == estimate_energy({2: 3, 4: 1})  # type: ignore[dict-item]


def test_counts_of_a_report() -> None:
    plan = compress(build("linear"), SMOL(target_bits=2.0), steps=4)
    precisions = report(plan.finalize(), latency=False).precisions
    assert sum(precisions.values()) == 90
    assert 0 < estimate_energy(precisions).energy < estimate_energy({8: 1}).energy


@pytest.mark.parametrize(
    ("precisions", "control", "message"),
    [
        ({}, 0.25, "no weights"),
        ({2: 0}, 0.25, "no weights"),
        ({-1: 1}, 0.25, "from 0 to 16"),
        ({17: 1}, 0.25, "from 0 to 16"),
        ({1.5: 1}, 0.25, "whole bits"),
        ({1: -1}, 0.25, "0 or more"),
        ({1: float("nan")}, 0.25, "0 or more"),
        ({1: 1}, -0.1, "overhead"),
    ],
)
def test_what_cannot_be_meant(precisions: dict[int, float], control: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        estimate_energy(precisions, control)


def test_nothing_to_compare_with() -> None:
    with pytest.raises(ConfigError, match="nothing is multiplied"):
        estimate_energy({1: 1}).relative_to(estimate_energy({0: 1}))
