"""The page around everything that is drawn: self-contained, no script, no request, one style sheet."""

from __future__ import annotations

import os
from collections.abc import Iterable
from html import escape
from pathlib import Path

from paretorch.deploy.codec.container import write_file
from paretorch.report.style import CSS

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def write_page(path: str | os.PathLike[str], title: str, sections: Iterable[str]) -> Path:
    """Write the sections as a page, all or nothing; returns its path."""
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{CSS}</style></head><body>'
        + "".join(sections)
        + "</body></html>\n"
    )
    target = Path(path)
    write_file(target, page.encode("utf-8", "replace"))  # a forged name may hold half a character
    return target
