"""The seam that the package makes: what it imports, and what `deploy` no longer needs."""

import ast
from collections.abc import Iterator
from pathlib import Path

import paretorch

_ROOT = Path(paretorch.__file__).parent


def _imported(room: str) -> Iterator[tuple[str, str]]:
    """(file, module) for every import in a room, those inside functions too."""
    for path in sorted((_ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                yield path.name, node.module
            elif isinstance(node, ast.Import):
                yield from ((path.name, one.name) for one in node.names)


def test_edits_import_errors_and_support_alone() -> None:
    allowed = ("paretorch.edits", "paretorch.errors", "paretorch.support")
    assert [
        one for one in _imported("edits") if one[1].startswith("paretorch") and not one[1].startswith(allowed)
    ] == []


def test_deploy_knows_no_method() -> None:
    assert [one for one in _imported("deploy") if one[1].startswith("paretorch.methods")] == []
