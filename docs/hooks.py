"""What mkdocs does beside its plugins: pages made from files outside of docs/, from notebooks, and links to results.

Pages are written for readers of the repository, so that links lead to `../results/…` and `../CONTRIBUTING.md`. In the site, a
linked file of results/ is copied, a README there becomes a page, and a folder is named without a link.
"""

from __future__ import annotations

import json
import os
import re
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

# Pages that are files of the repository's root.
_ROOT_PAGES = {"CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md", "CHANGELOG.md": "changelog.md"}
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_MOST_OUTPUT = 40  # lines of an output of a notebook


def _place(target: Path) -> str | None:
    """Where a file of the repository is in the site, from the root of the docs; None if it is not there."""
    if target.is_relative_to(DOCS):
        return target.relative_to(DOCS).with_suffix(".md" if target.suffix == ".ipynb" else target.suffix).as_posix()
    inside = target.relative_to(ROOT)
    if inside.name == inside.as_posix() and inside.name in _ROOT_PAGES:
        return _ROOT_PAGES[inside.name]
    if inside.parts[0] != "results":
        return None
    if target.is_dir():
        target, inside = target / "README.md", inside / "README.md"
    return f"files/{inside.as_posix()}" if target.is_file() else None


def _links(text: str, source: Path, page: str) -> tuple[str, set[Path]]:
    """The text of a page with links that work in the site, and the files of the repository that it links to."""
    found: set[Path] = set()

    def replace(match: re.Match[str]) -> str:
        mark, label, target = match.groups()
        name, _, anchor = target.partition("#")
        if not name or "://" in name or name.startswith("mailto:"):
            return match[0]
        path = Path(os.path.normpath(source.parent / name))
        if not path.is_relative_to(ROOT) or not path.exists():
            return match[0]  # mkdocs names it
        place = _place(path)
        if place is None:
            name = path.relative_to(ROOT).as_posix()
            return label if name in label or f"`{name}`" in label else f"{label} (`{name}`)"
        if place.startswith("files/"):
            found.add(path / "README.md" if path.is_dir() else path)
        relative = os.path.relpath(place, os.path.dirname(page) or ".")
        return f"{mark}[{label}]({relative}{'#' + anchor if anchor else ''})"

    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else _LINK.sub(replace, part) for part in parts), found


def _output(output: dict[str, Any]) -> str:
    """An output of a notebook's cell, as HTML or Markdown."""
    data = output.get("data", {})
    if "image/svg+xml" in data:
        return f'<figure markdown="0">{"".join(data["image/svg+xml"])}</figure>'
    if "image/png" in data:
        return f'<img alt="output of the cell" src="data:image/png;base64,{"".join(data["image/png"]).strip()}">'
    text = "".join(data.get("text/plain", output.get("text", "")))
    lines = text.rstrip("\n").splitlines()
    if len(lines) > _MOST_OUTPUT:
        lines = [*lines[:_MOST_OUTPUT], "…"]
    return f'<pre class="output" tabindex="0">{escape(chr(10).join(lines))}</pre>' if lines else ""


def notebook(path: Path) -> str:
    """A notebook as a page: its text, its code and the outputs that are stored in it."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        parts += [shown for output in cell["outputs"] if (shown := _output(output))]
    parts.append(f"This page is the notebook `docs/tutorials/{path.name}`, with the outputs of its last run.")
    return "\n\n".join(parts) + "\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages and files that are not in docs/ as they are."""
    sources = {DOCS / file.src_uri: file.src_uri for file in files if file.is_documentation_page()}
    pages: dict[str, tuple[Path, str]] = {}
    for name, place in _ROOT_PAGES.items():
        pages[place] = (ROOT / name, (ROOT / name).read_text(encoding="utf-8"))
    for path in sorted((DOCS / "tutorials").glob("*.ipynb")):
        pages[f"tutorials/{path.stem}.md"] = (path, notebook(path))
    linked: set[Path] = set()
    for path, place in sources.items():
        linked |= _links(path.read_text(encoding="utf-8"), path, place)[1]
    for place, (path, text) in pages.items():
        linked |= _links(text, path, place)[1]
    done: set[Path] = set()
    while todo := linked - done:
        for path in sorted(todo):
            place = f"files/{path.relative_to(ROOT).as_posix()}"
            if path.suffix == ".md":
                text = path.read_text(encoding="utf-8")
                pages[place] = (path, text)
                linked |= _links(text, path, place)[1]
            else:
                files.append(File.generated(config, place, abs_src_path=str(path)))
            done.add(path)
    for place, (path, text) in pages.items():
        files.append(File.generated(config, place, content=_links(text, path, place)[0]))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Mends the links of pages of docs/; those of other pages are mended already."""
    if page.file.generated_by:
        return markdown
    return _links(markdown, DOCS / page.file.src_uri, page.file.src_uri)[0]
