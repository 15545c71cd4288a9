"""The studies of similarities, tried small: their runs are what the pictures are made of."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paretorch.cli.app import app
from paretorch.studies import load_study, study_names
from paretorch.training import Runtime, train

_TINY = {
    "sharing-similarities": {"network": "swrn-16-1-2", "data": "digits", "network_options": {"channels": 1}},
    "sharing-hundred-layers": {
        "network_options": {"layers": 6, "width": 4},
        "data_options": {"size": 6, "count": 32, "test_count": 8},
    },
}


@pytest.mark.parametrize("name", _TINY)
def test_a_run_has_its_picture(tmp_path: Path, name: str) -> None:
    (recipe,) = load_study(name, _TINY[name]).settings.values()
    train(replace(recipe, epochs=1, batch=16), tmp_path / "run", Runtime(device="cpu", progress="quiet"))
    shown = CliRunner().invoke(app, ["fold", str(tmp_path / "run"), "--threshold", "0.99"])
    assert shown.exit_code == 0, shown.output
    page = (tmp_path / "run" / "folding.html").read_text()
    assert re.search(r"<svg", page)


def test_the_page_names_every_sharing_study() -> None:
    page = (Path(__file__).parents[2] / "docs" / "sharing.md").read_text()
    assert set(re.findall(r"pare study (sharing-[\w-]+)", page)) == {
        n for n in study_names() if n.startswith("sharing-")
    }
