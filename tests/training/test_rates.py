"""Learning-rate schedules."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paretorch.errors import ConfigError
from paretorch.training import schedules


@settings(max_examples=50, deadline=None)
@given(
    name=st.sampled_from(schedules.SCHEDULES), epochs=st.integers(1, 300), part=st.floats(0, 1), warmup=st.floats(0, 5)
)
def test_a_factor_lies_between_0_and_1(name: str, epochs: int, part: float, warmup: float) -> None:
    factor = schedules.build(name, epochs, milestones=[epochs / 2], warmup=warmup)(part * epochs)
    assert 0 <= factor <= 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("constant", [1, 1, 1]),
        ("cosine", [1, 0.5, 0]),
        ("linear", [1, 0.5, 0]),
        ("onecycle", [0.04, 0.8117449, 0]),
        ("steps", [1, 0.1, 0.01]),
    ],
)
def test_start_middle_and_end(name: str, expected: list[float]) -> None:
    schedule = schedules.build(name, 10, milestones=[5, 7.5])
    assert [schedule(t) for t in (0, 5, 10)] == pytest.approx(expected)


def test_warm_up_is_linear_and_then_gone() -> None:
    warm, plain = schedules.build("cosine", 10, warmup=2), schedules.build("cosine", 10)
    assert warm(1) == pytest.approx(plain(1) * 0.505)
    assert warm(2.5) == plain(2.5)


def test_unknown_names_and_missing_milestones_are_refused() -> None:
    with pytest.raises(ConfigError, match="choose one of"):
        schedules.build("cosin", 10)
    with pytest.raises(ConfigError, match="milestones"):
        schedules.build("steps", 10)
