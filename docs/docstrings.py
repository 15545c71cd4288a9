"""Shows the options of a docstring as a list.

Many docstrings describe options in running text, "target: share of the weights to drop. init: s at the start.", which reads well
in an editor. In the reference each option gets a row of its own, with its type and default.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_ANY = "*"  # of names: any word in front of a colon is an option
_SECTIONS = ("Args:", "Returns:", "Raises:", "Attributes:", "Yields:")


def options_of(text: str, names: set[str]) -> str:
    """The docstring with the options of its running text as a section, and with its example under the heading that is known."""
    text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
    if not names or any(re.search(f"^{section}$", text, re.MULTILINE) for section in _SECTIONS):
        return text
    name = "(?:" + "|".join(sorted(map(re.escape, names - {_ANY}), key=len, reverse=True)) + ")"
    if _ANY in names:
        name = "[a-z][a-z_]+"
    start = re.compile(rf"(?:^|(?<=[.;)]\s))({name}(?:, {name})*): ")
    kept, rows = [], []
    for paragraph in text.split("\n\n"):
        if paragraph.startswith(("Examples:", " ")) or not (found := list(start.finditer(paragraph))):
            kept.append(paragraph)
            continue
        if before := paragraph[: found[0].start()].strip():
            kept.append(before)
        ends = [match.start() for match in found[1:]] + [len(paragraph)]
        for match, end in zip(found, ends, strict=True):
            words = " ".join(paragraph[match.end() : end].split())
            rows += [f"    {one}: {words}" for one in match[1].split(", ")]
    if rows:
        place = next((i for i, one in enumerate(kept) if one.startswith("Examples:")), len(kept))
        kept.insert(place, "Args:\n" + "\n".join(rows))
    return "\n\n".join(kept)


class Options(griffe.Extension):
    """The extension as mkdocstrings loads it."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        self._rewrite(func, {one.name for one in func.parameters})

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """A dataclass has its options as fields, some of them in bases that are not read yet."""
        is_dataclass = any("dataclass" in str(one.value) for one in cls.decorators)
        self._rewrite(cls, {_ANY} if is_dataclass else set())

    def _rewrite(self, found: griffe.Object, names: set[str]) -> None:
        if found.docstring is not None:
            found.docstring.value = options_of(found.docstring.value, names)
