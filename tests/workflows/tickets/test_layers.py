"""Methods beside each other, layer by layer, at about equal sparsity."""

from typing import Any
from xml.etree import ElementTree

from paretorch.workflows.tickets import Result
from paretorch.workflows.tickets.result import alike, draw_layers


def row(method: str, seed: int, sparsity: float) -> dict[str, Any]:
    layers = {"first": 1.0 - sparsity / 2, "second": 1.0 - sparsity}
    return {"method": method, "seed": seed, "sparsity": sparsity, "accuracy": 0.5, "layers": layers}


ROWS = [
    *(row("cs", 0, one) for one in (0.3, 0.505, 0.9)),
    *(row("imp", 0, one) for one in (0.2, 0.36, 0.5, 0.8)),
    *(row("cs", 1, one) for one in (0.795, 0.95)),
    *(row("imp", 1, one) for one in (0.2, 0.79)),
]


def test_the_nearest_pair_of_one_seed_is_compared_and_the_sparsest_of_such() -> None:
    assert [(one["method"], one["seed"], one["sparsity"]) for one in alike(Result([], ROWS))] == [
        ("cs", 1, 0.795),
        ("imp", 1, 0.79),
    ]
    assert [one["sparsity"] for one in alike(Result([], ROWS[:7]))] == [0.505, 0.5]


def test_a_single_method_has_nothing_beside_it() -> None:
    assert alike(Result([], [one for one in ROWS if one["method"] == "cs"])) == []
    assert alike(Result([], [])) == []
    assert alike(Result([], [row("cs", 0, 0.5), row("imp", 1, 0.5)])) == [], "seeds are not mixed"


def test_the_plot_stands_alone_and_names_every_ticket() -> None:
    root = ElementTree.fromstring(draw_layers(alike(Result([], ROWS))))
    words = " ".join(root.itertext())
    assert root.tag.endswith("svg")
    assert "cs, 79.5 % zeros from 60.25 % to 20.5 %" in words
    assert "imp, 79.0 % zeros from 60.5 % to 21 %" in words
