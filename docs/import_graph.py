"""Draws docs/import_graph.svg: which room imports which, read off the code.

    python docs/import_graph.py

Rows and boxes are the layers of the import-linter contracts in pyproject.toml, arrows and dots the imports that grimp finds: at the top
of a file, inside of functions and under TYPE_CHECKING alike. The same code gives the same picture, and a test compares the two.
"""

import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "import_graph.svg"

WIDTH, HEIGHT = 96, 28  # of a box
ACROSS, DOWN = 116, 56  # from box to box
CELL = 20  # of the table
TITLE = 44  # above the boxes
INK, EDGE, FILL, FAINT = "#1f2328", "#57606a", "#eaf2fb", "#d0d7de"

# Boxes that leave the middle of their row free, for arrows that pass; others go from left to right around the middle.
COLUMNS = {"public": -1, "zoo": -1, "methods": 1, "optim": 2}


@dataclass(frozen=True)
class Graph:
    """Boxes in rows, from the top down, and the boxes that each imports from directly."""

    title: str
    rows: list[list[str]]
    imports: dict[str, set[str]]

    @property
    def boxes(self) -> list[str]:
        return [box for row in self.rows for box in row]

    def arrows(self) -> list[tuple[str, str]]:
        """Imports that do not follow from a chain of others."""
        found = []
        for box in self.boxes:
            below = {one: self._reached(one) for one in self.imports[box]}
            found += [(box, one) for one in sorted(below) if not any(one in below[other] for other in below)]
        return found

    def _reached(self, box: str) -> set[str]:
        return set().union(*({one} | self._reached(one) for one in self.imports[box]))


def read_graph(contract: dict[str, object], imports: grimp.ImportGraph) -> Graph:
    """The boxes of a contract with layers, and the imports between them."""
    (container,) = contract["containers"]  # type: ignore[misc]
    rows = [[box.strip() for box in layer.split("|")] for layer in contract["layers"]]  # type: ignore[attr-defined]
    found: dict[str, set[str]] = {box: set() for row in rows for box in row}
    for box in found:
        package = f"{container}.{box}"
        for module in {package} | imports.find_descendants(package):
            for other in imports.find_modules_directly_imported_by(module):
                target = other.removeprefix(f"{container}.").split(".")[0] if other.startswith(f"{container}.") else box
                found[box] |= {target} - {box}
    return Graph(f"{container.replace('.', '/')}/", rows, found)


def places(graph: Graph) -> dict[str, tuple[float, float]]:
    """The centre of every box; 0 across is the middle."""
    found = {}
    for number, row in enumerate(graph.rows):
        for place, box in enumerate(row):
            even = place - (len(row) - 1) / 2 if not any(one in COLUMNS for one in row) else 0
            found[box] = (COLUMNS.get(box, even) * ACROSS, TITLE + number * DOWN + HEIGHT / 2)
    return found


def route(start: tuple[float, float], end: tuple[float, float]) -> str:
    """A path from one box down to another: straight to the next row, along an outer column past several."""
    (x, y), (u, v) = start, end
    if v - y <= DOWN or x == u:
        return f"M{x:g} {y + HEIGHT / 2:g}L{u:g} {v - HEIGHT / 2:g}"
    if abs(x) > abs(u):
        return f"M{x:g} {y + HEIGHT / 2:g}V{v:g}H{u + (WIDTH / 2 if x > u else -WIDTH / 2):g}"
    return f"M{x + (WIDTH / 2 if u > x else -WIDTH / 2):g} {y:g}H{u:g}V{v - HEIGHT / 2:g}"


def draw_boxes(graph: Graph) -> Iterator[str]:
    """Boxes and arrows; the middle is at 0 across."""
    at = places(graph)
    yield f'<text x="0" y="18" text-anchor="middle" font-weight="600">{graph.title}</text>'
    for box, other in graph.arrows():
        yield f'<path d="{route(at[box], at[other])}" fill="none" stroke="{EDGE}" marker-end="url(#tip)"/>'
    for box, (x, y) in at.items():
        corner = f'x="{x - WIDTH / 2:g}" y="{y - HEIGHT / 2:g}" width="{WIDTH}" height="{HEIGHT}" rx="5"'
        yield f'<rect {corner} fill="{FILL}" stroke="{EDGE}"/>'
        yield f'<text x="{x:g}" y="{y + 4:g}" text-anchor="middle">{box}</text>'


def draw_table(graph: Graph) -> Iterator[str]:
    """A dot wherever the box of the row imports the box of the column directly."""
    size = CELL * len(graph.boxes)
    for number, box in enumerate(graph.boxes):
        middle = number * CELL + CELL / 2
        yield f'<text x="-8" y="{middle + 4:g}" text-anchor="end">{box}</text>'
        yield f'<text transform="translate({middle + 4:g} -8) rotate(-90)">{box}</text>'
        yield f'<rect x="{number * CELL}" y="{number * CELL}" width="{CELL}" height="{CELL}" fill="{FAINT}"/>'
        for other, column in enumerate(graph.boxes):
            if column in graph.imports[box]:
                yield f'<circle cx="{other * CELL + CELL / 2:g}" cy="{middle:g}" r="4.5" fill="{INK}"/>'
    for line in range(len(graph.boxes) + 1):
        yield f'<path d="M0 {line * CELL}H{size}M{line * CELL} 0V{size}" stroke="{FAINT}"/>'


def draw() -> str:
    """The whole picture."""
    sys.path.insert(0, str(ROOT / "src"))  # of this checkout, whichever is installed
    imports = grimp.build_graph("paretorch", cache_dir=None)
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    parts, top = [], 10
    for contract in (one for one in contracts if one["type"] == "layers"):
        graph = read_graph(contract, imports)
        tall = max(TITLE + DOWN * len(graph.rows), 100 + CELL * len(graph.boxes) + 20)
        parts += [f'<g transform="translate(190 {top})">', *draw_boxes(graph), "</g>"]
        parts += [f'<g transform="translate(600 {top + 100})">', *draw_table(graph), "</g>"]
        top += tall + 20
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 880 {top}" width="880" height="{top}" '
    head += f'font-family="Helvetica, Arial, sans-serif" font-size="13" fill="{INK}">'
    tip = '<marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    tip += f'<path d="M0 0L8 4L0 8z" fill="{EDGE}"/></marker>'
    lines = [head, f"<defs>{tip}</defs>", f'<rect width="880" height="{top}" fill="#ffffff"/>', *parts, "</svg>"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(draw())
