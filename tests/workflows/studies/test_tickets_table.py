"""Ticket searches over the seeds: what is averaged, over how many seeds, and how it is shown."""

from typing import Any

import pytest

from paretorch.workflows.studies.results import spread
from paretorch.workflows.studies.tickets import by_method, result_of, show_methods
from paretorch.workflows.tickets import Result


def _row(search: str, number: int, sparsity: float, accuracy: float, epochs: int) -> dict[str, Any]:
    setting, _, seed = search.rpartition("-seed")
    return {
        "search": search,
        "method": setting.partition("-")[0],
        "seed": int(seed),
        "round": number,
        "sparsity": sparsity,
        "accuracy": accuracy,
        "test_accuracy": accuracy - 0.01,
        "epochs": epochs,
        "search_epochs": epochs // 2,
    }


_ROWS = [
    _row("dense-seed0", 0, 0.0, 0.80, 5),
    _row("dense-seed1", 0, 0.0, 0.90, 5),
    _row("cs-init0-seed0", 1, 0.50, 0.85, 10),
    _row("cs-init0-seed0", 2, 0.70, 0.80, 20),
    _row("cs-init1-seed0", 1, 0.60, 0.82, 10),
    _row("cs-init0-seed1", 1, 0.80, 0.92, 10),
    _row("cs-init0-seed1", 2, 0.90, 0.89, 20),
    _row("imp-rate0.2-seed0", 1, 0.20, 0.85, 10),
    _row("imp-rate0.2-seed1", 1, 0.20, 0.85, 10),
]
_WHOLE = result_of(_ROWS, [0, 1])


def test_each_seed_gives_its_own_ticket_to_the_mean() -> None:
    cs = by_method(_WHOLE)["cs"]
    assert cs["sparsest_matching"]["sparsity"] == spread([0.7, 0.8])
    assert cs["sparsest_matching"]["epochs"] == spread([20, 10])
    assert cs["sparsest_matching"]["search_epochs"] == spread([10, 5])
    assert cs["best_performing"]["sparsity"] == spread([0.5, 0.8])
    assert cs["best_performing"]["test_accuracy"]["mean"] == pytest.approx(0.875)
    assert cs["epochs"] == spread([30, 20]), "all runs of the seed, each to its end"


def test_a_seed_without_a_matching_ticket_is_in_no_mean_and_is_told() -> None:
    imp = by_method(_WHOLE)["imp"]
    assert imp["sparsest_matching"]["sparsity"] == spread([0.2])
    assert imp["best_performing"]["sparsity"]["n"] == 2
    lines = show_methods(_WHOLE)
    (sparsest,) = [line for line in lines if line.startswith("imp ") and "sparsest" in line]
    assert sparsest.endswith("1 of 2")
    assert "20.00 %" in sparsest
    assert "± " in sparsest.split("%")[-1], "the epochs of the method are over both seeds"


def test_methods_are_shown_with_mean_and_standard_deviation() -> None:
    lines = show_methods(_WHOLE)
    assert "mean ± standard deviation" in lines[0]
    assert [line.split()[0] for line in lines[3:]] == ["dense", "cs", "cs", "imp", "imp"]
    assert "75.00 ± 7.07 %" in lines[4]
    assert "15 ± 7" in lines[4]
    assert lines[4].split()[-4:] == ["25", "±", "7", "2"]


def test_one_seed_has_no_spread() -> None:
    lines = show_methods(result_of(_ROWS, [1]))
    assert "±" not in "".join(lines)
    assert "standard deviation" not in lines[0]
    assert [line.split()[-1] for line in lines[3:5]] == ["1", "1"]


def test_where_nothing_matches_dashes_stand() -> None:
    result = result_of([row for row in _ROWS if row["search"] != "imp-rate0.2-seed0"], [1])
    assert by_method(result)["imp"]["sparsest_matching"] is None
    assert show_methods(result)[-2].split() == ["imp", "sparsest", "matching", *"––––", "10", "0", "of", "1"]


def test_without_dense_networks_the_best_ticket_is_told_alone() -> None:
    result = Result([], _WHOLE.tickets)
    assert all(one["sparsest_matching"] is None for one in by_method(result).values())
    assert not any(line.startswith("dense") for line in show_methods(result))
