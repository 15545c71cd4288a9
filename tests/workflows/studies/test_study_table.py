"""The sparsest within some points of dense: chosen by validation, told by test, at a known cost."""

from typing import Any

import pytest

from paretorch.workflows.studies.study import Study, load_study, parse_study
from paretorch.workflows.studies.tables import as_rows, points_of, show_layers, show_points, show_verdicts, verdicts

_TEXT = """
title = "Digits"
claim = "it chooses"
seeds = [0, 1]
[recipe]
network = "digits-cnn"
data = "digits"
validation = 200
[settings.dense]
[settings.cs]
pruning = "cs"
[settings.cs.vary]
sparsity = [0.5, 0.8, 0.9]
[settings.gmp]
pruning = "gmp"
[settings.gmp.vary]
sparsity = [0.5, 0.8, 0.9]
"""


@pytest.fixture
def study() -> Study:
    return parse_study("small", _TEXT)


def _results(**validation: tuple[float, float]) -> dict[str, dict[str, Any]]:
    """Results of two seeds by setting ('cs_0_8'); the test accuracy says the opposite, should it ever choose."""
    found = {}
    for key, values in validation.items():
        setting = key.replace("_", "-", 1).replace("_", ".")
        for seed, value in enumerate(values):
            result: dict[str, Any] = {
                "test_accuracy": value,
                "final_test_accuracy": 1 - value,
                "evaluated_on": "validation",
            }
            if setting != "dense":
                result |= {
                    "sparsity": float(setting.split("-")[1]),
                    "soft_accuracy": value,
                    "hard_accuracy": value - 0.01 * seed,
                }
            found[f"{setting}-seed{seed}"] = result
    return found


def test_the_sparsest_within_the_points_is_chosen_by_the_mean_validation_accuracy(study: Study) -> None:
    found = _results(
        dense=(0.91, 0.93),
        cs_0_5=(0.92, 0.92),
        cs_0_8=(0.89, 0.91),
        cs_0_9=(0.93, 0.86),
        gmp_0_5=(0.9, 0.9),
        gmp_0_8=(0.5, 0.6),
    )
    points = points_of(study, found)
    cs, gmp = verdicts(study, points)
    assert cs.point is not None
    assert cs.point.setting == "cs-0.8", "exactly 2 points below is within; 2.5 points below on average is not"
    assert cs.point.test == pytest.approx(0.1)
    assert cs.point.test_std == pytest.approx(0.02**0.5 / 10)
    assert cs.point.rounding == pytest.approx(0.01)
    assert (cs.runs, gmp.runs) == (6, 4)
    assert gmp.point is not None
    assert gmp.point.sparsity == 0.5
    told = show_verdicts(study, points)
    assert "Not every method has had as many runs" in told[-1]
    assert "10.00 ± 1.41 %" in "\n".join(told)
    assert [row["method"] for row in as_rows(study, points)] == ["cs", "gmp"]
    assert len(show_points(points)) == 2 + 6


def test_a_later_point_may_be_within_though_an_earlier_is_not(study: Study) -> None:
    found = _results(dense=(0.9, 0.9), cs_0_5=(0.5, 0.5), cs_0_8=(0.9, 0.9), gmp_0_5=(0.1, 0.1), gmp_0_8=(0.1, 0.1))
    cs, gmp = verdicts(study, points_of(study, found))
    assert cs.point is not None
    assert cs.point.setting == "cs-0.8"
    assert gmp.point is None
    told = show_verdicts(study, points_of(study, found))
    assert told[-1].split() == ["gmp", *"–" * 6, "4"]


def test_without_dense_runs_there_is_no_verdict(study: Study) -> None:
    points = points_of(study, _results(cs_0_5=(0.9, 0.9)))
    assert len(points) == 1
    assert verdicts(study, points) == show_verdicts(study, points) == []


def test_runs_that_were_evaluated_on_the_test_set_choose_nothing(study: Study) -> None:
    found = _results(dense=(0.9, 0.9), cs_0_5=(0.9, 0.9))
    found["cs-0.5-seed1"]["evaluated_on"] = "test"
    assert points_of(study, found) == []


def test_layers_stand_side_by_side(study: Study) -> None:
    found = _results(dense=(0.9, 0.9), cs_0_8=(0.9, 0.9), gmp_0_8=(0.9, 0.9))
    assert show_layers(study, found) == []
    for name, share in (("cs-0.8-seed0", 0.5), ("cs-0.8-seed1", 0.7), ("gmp-0.8-seed0", 0.25)):
        found[name]["layers"] = {"a.weight": share, "head.weight": 0.0}
    lines = show_layers(study, found)
    assert lines[0].split() == ["layer", "cs-0.8", "gmp-0.8"]
    assert lines[2].split() == ["a", "60.00", "%", "25.00", "%"]
    assert lines[3].split() == ["head", "0.00", "%", "0.00", "%"]


def test_one_seed_has_no_spread(study: Study) -> None:
    (point,) = points_of(study, {"dense-seed0": _results(dense=(0.9, 0.9))["dense-seed0"]})
    assert (point.seeds, point.test_std) == (1, 0.0)
    assert "±" not in "".join(show_points([point]))


def test_of_precisions_the_bits_of_each_layer_are_shown() -> None:
    study = load_study("precision-resnet20").only(["layer-2.4", "dense"])
    run = {"test_accuracy": 0.9, "layers": {"stem.weight": 0.25, "head.weight": 0.0}}
    assert "25.00 %" in show_layers(study, {"layer-2.4-seed0": run})[2], "results from before bits were kept"
    bits = {"stem.weight": 5.0, "head.weight": 6.0}
    lines = show_layers(study, {"dense-seed0": {"test_accuracy": 0.9}, "layer-2.4-seed0": {**run, "layer_bits": bits}})
    assert [line.split() for line in lines if "weight" not in line and "─" not in line] == [
        ["layer", "layer-2.4"],
        ["stem", "5.00"],
        ["head", "6.00"],
    ]
