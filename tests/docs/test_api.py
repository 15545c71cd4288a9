"""The page of public names has all of them, and none that does not exist."""

import re
from pathlib import Path

import paretorch
from paretorch import Plan

PAGE = Path(__file__).parents[2] / "docs" / "api.md"


def test_every_public_name_is_there_and_exists() -> None:
    text = PAGE.read_text()
    named = set(re.findall(r"`pt\.(\w+)", text))
    assert named == set(paretorch.__all__)
    for method in re.findall(r"`(?:plan|Plan)\.(\w+)", text):
        assert hasattr(Plan, method), method


def test_no_more_than_about_twenty_five() -> None:
    assert len(paretorch.__all__) <= 25


def test_links_lead_somewhere() -> None:
    for page in PAGE.parent.glob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
