"""The examples in the docstrings of the optimizers run."""

from __future__ import annotations

import doctest

from .common import every_kind


@every_kind
def test_example(kind) -> None:
    (example,) = doctest.DocTestFinder(recurse=False).find(kind, kind.__name__)
    assert len(example.examples) > 3
    assert doctest.DocTestRunner().run(example).failed == 0
