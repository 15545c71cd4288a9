"""Every public name has an example in its docstring, and it runs."""

import doctest

import pytest

import paretorch as pt


@pytest.mark.parametrize("name", sorted(pt.__all__))
def test_example_runs(name: str) -> None:
    (example,) = doctest.DocTestFinder(recurse=False).find(getattr(pt, name), name)
    assert example.examples, "give it an example"
    assert doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example).failed == 0
