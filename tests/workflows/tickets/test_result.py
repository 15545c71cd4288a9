"""What counts as the sparsest matching and the best ticket, and the plot of it."""

from typing import Any
from xml.etree import ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st

from paretorch.workflows.tickets import Result
from paretorch.workflows.tickets.result import draw


def row(search: str, number: int, sparsity: float, accuracy: float, epochs: int = 0) -> dict[str, Any]:
    name, _, seed = search.rpartition("-seed")
    method = name.partition("-init")[0].partition("-rate")[0]
    return {
        "search": search,
        "method": method,
        "seed": int(seed),
        "round": number,
        "sparsity": sparsity,
        "accuracy": accuracy,
        "test_accuracy": 1 - accuracy,  # the wrong choice, should the test set ever decide
        "search_epochs": number,
        "epochs": epochs,
    }


DENSE = [row("dense-seed0", 0, 0.0, 0.8), row("dense-seed1", 0, 0.0, 0.9)]
ROWS = [
    row("cs-init0-seed0", 1, 0.5, 0.82, 4),
    row("cs-init0-seed0", 2, 0.7, 0.80, 8),
    row("cs-init-0.1-seed0", 1, 0.9, 0.79, 4),
    row("cs-init0-seed1", 1, 0.5, 0.82, 4),
    row("imp-rate0.2-seed0", 1, 0.2, 0.85, 4),
    row("imp-rate0.2-seed0", 2, 0.36, 0.85, 6),
]


def test_each_method_and_seed_is_measured_against_its_own_dense_network() -> None:
    found = {(one.method, one.seed): one for one in Result(DENSE, ROWS).found()}
    assert found["cs", 0].sparsest == ROWS[1]
    assert found["cs", 0].best == ROWS[0]
    assert found["cs", 0].epochs == 12
    assert found["cs", 1].sparsest is None
    assert found["cs", 1].best == ROWS[3]
    assert found["imp", 0].sparsest == found["imp", 0].best == ROWS[5]
    assert found["imp", 0].epochs == 6


def test_without_a_dense_network_nothing_matches() -> None:
    assert all(one.sparsest is None for one in Result([], ROWS).found())


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=8), st.floats(0, 1))
def test_no_other_ticket_would_be_a_better_choice(points: list[tuple[float, float]], bar: float) -> None:
    rows = [row("cs-init0-seed0", i + 1, *point) for i, point in enumerate(points)]
    (one,) = Result([row("dense-seed0", 0, 0.0, bar)], rows).found()
    matching = [each for each in rows if each["accuracy"] >= bar]
    assert (one.sparsest is None) == (not matching)
    assert all(each["sparsity"] <= one.sparsest["sparsity"] for each in matching if one.sparsest)
    assert one.best["accuracy"] == max(each["accuracy"] for each in rows)


def test_curves_are_averages_over_seeds_of_the_last_rounds_or_of_all() -> None:
    rows = [
        row("cs-init0-seed0", 1, 0.1, 0.5),
        row("cs-init0-seed0", 2, 0.4, 0.6),
        row("cs-init0-seed1", 2, 0.6, 0.8),
        row("cs-init1-seed0", 2, 0.2, 0.9),
        row("imp-rate0.2-seed0", 2, 0.3, 0.7),
        row("imp-rate0.2-seed0", 1, 0.2, 0.6),
    ]
    curves = Result([], rows).curves()
    assert [tuple(round(value, 6) for value in point) for point in curves["cs"]] == [(0.2, 0.9), (0.5, 0.7)]
    assert curves["imp"] == [(0.2, 0.6), (0.3, 0.7)]


def test_the_plot_is_a_file_of_its_own() -> None:
    root = ElementTree.fromstring(draw(Result(DENSE, ROWS)))
    space = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{space}svg"
    assert [path[0].text for path in root.iter(f"{space}path")] == ["dense", "cs", "imp"]
    assert root.find(f"{space}style") is not None


def test_one_ticket_alone_is_a_dot() -> None:
    root = ElementTree.fromstring(draw(Result([], ROWS[:1])))
    (path,) = root.iter("{http://www.w3.org/2000/svg}path")
    start, end = path.attrib["d"].removeprefix("M").split("L")
    assert start == end
