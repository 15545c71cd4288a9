"""The table of bits: asked, counted, on disk, and how far from dense."""

from typing import Any

import pytest

from paretorch.workflows.studies.study import Study, parse_study
from paretorch.workflows.studies.tables import show_bits

_TEXT = """
title = "Digits"
claim = "few bits do"
seeds = [0, 1]
[recipe]
network = "digits-cnn"
data = "digits"
epochs = 2
[settings.dense]
[settings.smol]
quantization = "smol"
bits = 2.0
[settings.bsq]
quantization = "bsq"
bits = 8.0
"""


@pytest.fixture
def study() -> Study:
    return parse_study("small", _TEXT)


def _result(accuracy: float, bits: float | None = None) -> dict[str, Any]:
    own = {} if bits is None else {"bits": bits, "bits_on_disk": bits + 0.5}
    return {"test_accuracy": accuracy, "evaluated_on": "test", "bytes": 12_345, **own}


def test_each_setting_is_told_beside_the_dense_network(study: Study) -> None:
    found = {
        "dense-seed0": _result(0.9),
        "dense-seed1": _result(0.92),
        "smol-seed0": _result(0.88, 2.0),
        "smol-seed1": _result(0.9, 2.1),
        "bsq-seed0": _result(0.95, 3.0),
    }
    head, _, *lines = show_bits(study, found)
    assert head.split("  ")[0] == "setting"
    assert "test accuracy" in head
    assert [line.split() for line in lines] == [
        ["dense", "–", "–", "–", "12,345", "91.00", "%", "±", "1.41", "%", "–", "2"],
        ["smol", "2", "2.050", "2.550", "12,345", "89.00", "%", "±", "1.41", "%", "−2.00", "2"],
        ["bsq", "–", "3.000", "3.500", "12,345", "95.00", "%", "+4.00", "1"],
    ]


def test_without_a_dense_network_there_is_no_distance(study: Study) -> None:
    (line,) = show_bits(study, {"smol-seed0": _result(0.88, 2.0)})[2:]
    assert line.split()[-2:] == ["–", "1"]


def test_a_study_of_other_things_has_no_such_table(study: Study) -> None:
    assert show_bits(study, {"dense-seed0": _result(0.9)}) == []
