"""docs/architecture.md says what the code does: its rooms, its imports, and the files that one call runs."""

import importlib.util
import re
import sys
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import torch
from torch import nn

import paretorch as pt

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCE = Path(pt.__file__).parent
PAGE = (DOCS / "architecture.md").read_text()


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def first_column(text: str) -> list[str]:
    return re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)


def import_graph() -> ModuleType:
    spec = importlib.util.spec_from_file_location("import_graph", DOCS / "import_graph.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # which dataclasses look up
    spec.loader.exec_module(module)
    return module


def test_the_picture_shows_the_imports_of_the_code() -> None:
    graph = import_graph()
    assert graph.draw() == graph.PICTURE.read_text(), "draw it anew: python docs/import_graph.py"


def test_the_table_has_every_room() -> None:
    named = first_column(section("The rooms"))
    rooms = {f"{one.name}/" for one in SOURCE.iterdir() if (one / "__init__.py").exists()}
    assert rooms <= set(named)
    assert [one for one in named if not (SOURCE / one).exists()] == []


class Files:
    """The library's files of which functions run."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            self._seen.add(frame.f_code.co_filename)

    @property
    def found(self) -> set[str]:
        paths = [Path(name) for name in self._seen]
        return {path.relative_to(SOURCE).as_posix() for path in paths if path.is_relative_to(SOURCE)}


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))


def one_call(path: Path) -> None:
    torch.manual_seed(0)
    model, x = network(), torch.randn(64, 16)
    plan = pt.compress(model, pt.ContinuousSparsification(target=0.95), steps=60)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.1)
    for _ in range(60):
        nn.functional.cross_entropy(model(x), x[:, :4].argmax(1)).backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
    plan.harden(optimizer)
    pt.save(plan.finalize(), path)
    loaded = pt.load(path, into=network())
    assert torch.equal(loaded(x), model(x))


def test_the_call_runs_the_files_that_are_named_and_they_are_few(tmp_path: Path) -> None:
    named = first_column(section("One call, file by file"))
    assert [one for one in named if not (SOURCE / one).is_file()] == []
    assert len(named) == len(set(named)) <= 40
    assert all(getattr(pt, name) is not None for name in pt.__all__)  # which imports them
    before, files = sys.getprofile(), Files()
    sys.setprofile(files)
    try:
        one_call(tmp_path / "model.pare")
    finally:
        sys.setprofile(before)
    assert {one for one in files.found if not one.startswith("support/")} == set(named)


def test_the_glossary_is_short_and_has_each_term_once() -> None:
    terms = re.findall(r"^\| \*\*([^*]+)\*\* \|", (DOCS / "glossary.md").read_text(), re.MULTILINE)
    assert 10 <= len(terms) <= 20
    assert len(set(terms)) == len(terms)


def test_links_lead_somewhere() -> None:
    for page in ("architecture.md", "glossary.md"):
        targets = re.findall(r"\]\(([^)#]+)\)", (DOCS / page).read_text())
        assert targets
        assert [target for target in targets if not (DOCS / target).exists()] == []
