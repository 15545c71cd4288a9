"""The metric of each setting: over the test part, or over the validation part with the test part beside it."""

from paretorch.workflows.studies.study import load_study
from paretorch.workflows.studies.tables import show_metric

_RATES = load_study("optim-lstm300-rates")


def test_what_was_chosen_by_is_not_called_test() -> None:
    found = {
        "adam-0.004-seed0": {"test_bpc": 1.554, "final_test_bpc": 1.51, "evaluated_on": "validation"},
        "avagrad-500-seed0": {"test_bpc": 1.656, "evaluated_on": "validation"},
    }
    head, _, *lines = show_metric(_RATES, found)
    assert head.split() == ["setting", "validation", "bpc", "test", "bpc", "seeds"]
    assert [line.split() for line in lines] == [
        ["avagrad-500", "1.656", "–", "1"],
        ["adam-0.004", "1.554", "1.51", "1"],
    ]


def test_without_a_validation_part() -> None:
    study = load_study("optim-lstm300")
    found = {f"adam-seed{seed}": {"test_bpc": bpc, "evaluated_on": "test"} for seed, bpc in enumerate((1.5, 1.6))}
    head, _, line = show_metric(study, found)
    assert head.split() == ["setting", "test", "bpc", "seeds"]
    assert line.split() == ["adam", "1.55", "±", "0.07071", "2"]


def test_nothing_found_nothing_shown() -> None:
    assert show_metric(_RATES, {}) == []
