"""docs/artefact.md matches the code: codings of a tensor, options of functions, flags of the command."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from typer.main import get_command

import paretorch as pt
from paretorch.cli.app import app
from paretorch.deploy.codec.tensors import CODINGS

PAGE = (Path(__file__).parents[2] / "docs" / "artefact.md").read_text()


def test_every_coding_is_on_the_page() -> None:
    named = set(re.findall(r"\| `([a-z]+)`", PAGE))
    assert named == {coding.name for coding in CODINGS} - {"constant", "small"}


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (pt.save, ("fold_norms", "norms", "summary")),
        (pt.load, ("into",)),
        (pt.report, ("example", "latency", "baseline", "data", "accuracy")),
        (pt.compress, ("budget",)),
    ],
)
def test_options_are_documented(function: object, options: tuple[str, ...]) -> None:
    for option in options:
        assert option in inspect.signature(function).parameters  # type: ignore[arg-type]
        assert f"{option}=" in PAGE


def test_flags_exist() -> None:
    command = get_command(app).commands["report"]  # type: ignore[attr-defined]
    known = {flag for one in command.params for flag in one.opts}
    lines = [line.partition("#")[0] for line in PAGE.splitlines() if line.startswith("pare report")]
    used = {word for line in lines for word in line.split() if word.startswith("--")}
    assert used
    assert used <= known


def test_links_have_targets() -> None:
    folder = Path(__file__).parents[2] / "docs"
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", PAGE):
        assert (folder / link).exists(), link
