"""The registry of methods: names, classes, and the page that is written from it."""

from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from paretorch.cli.recipe_flags import FLAGS
from paretorch.core.method import Method
from paretorch.methods import registry
from paretorch.methods.precision import rivals as quantizers
from paretorch.methods.registry import METHODS, Entry
from paretorch.methods.sparsity import rivals as pruners
from paretorch.training.recipe import ACTIVATIONS, PRUNING, QUANTIZATION


def test_a_name_is_unique_within_its_kind() -> None:
    keys = [(one.kind, one.name) for one in METHODS]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("one", METHODS, ids=lambda one: f"{one.kind}-{one.name}")
def test_an_entry_names_a_method_and_says_what_it_is(one: Entry) -> None:
    assert issubclass(one.method, Method)
    assert is_dataclass(one.method)
    assert one.method.on_activations == (one.kind == "activations")
    assert "exclude" in {field.name for field in fields(one.method)}
    assert one.summary
    assert not one.summary.endswith(".")
    assert one.reference


def test_every_method_of_the_package_has_an_entry() -> None:
    """Rivals too: what has no entry is in no table and in no recipe."""
    found = {one.method for one in METHODS}
    for place in (pruners, quantizers):
        classes = {value for name in place.__all__ if isinstance(value := getattr(place, name), type)}
        assert {value for value in classes if issubclass(value, Method)} <= found


def test_recipes_and_the_command_line_have_the_names_of_the_registry() -> None:
    helps = {flag.name: flag.help for flag in FLAGS}
    for names, kind, flag in (
        (PRUNING, "sparsity", "pruning"),
        (QUANTIZATION, "precision", "quantization"),
        (ACTIVATIONS, "activations", "activations"),
    ):
        assert names == tuple(one.name for one in METHODS if one.kind == kind)
        assert ", ".join(names) in helps[flag]


def test_the_page_is_the_one_that_the_registry_gives() -> None:
    page = Path(registry.__file__).parents[3] / "docs" / "methods.md"
    assert page.read_text(encoding="utf-8") == registry.page(), "python -m paretorch.methods.registry > docs/methods.md"
