"""The examples in the docstrings of the zoo run."""

import doctest

import pytest

from paretorch import zoo


@pytest.mark.parametrize("function", [zoo.build, zoo.data.load])
def test_example(function) -> None:
    (example,) = doctest.DocTestFinder(recurse=False).find(function, function.__name__)
    assert len(example.examples) > 2
    assert doctest.DocTestRunner().run(example).failed == 0
