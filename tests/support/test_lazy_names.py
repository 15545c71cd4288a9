"""Public names and rooms are found when they are used, and functions win over rooms of the same name."""

import subprocess
import sys

import pytest

import paretorch as pt

CODE = """
import sys
import paretorch as pt
assert not any(name in sys.modules for name in ("torch", "paretorch.core", "paretorch.deploy"))
import paretorch.report, paretorch.deploy.export
assert callable(pt.report) and callable(pt.export) and callable(pt.deploy.export)
assert pt.deploy.Report.__name__ == "Report"
assert pt.zoo.names() and {*pt.__all__} <= {*dir(pt)}
"""


def test_names_are_found_when_they_are_used() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["no_such_name", "_hidden", "__wrapped__"])
def test_other_names_raise(name: str) -> None:
    assert not hasattr(pt, name)
    with pytest.raises(AttributeError, match=f"module 'paretorch' has no attribute '{name}'"):
        getattr(pt, name)
