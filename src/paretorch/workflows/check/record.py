"""What a look at files has found: one line for each file, and what can be saved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paretorch.errors import PareError

OK, NOTE, DAMAGED = "ok", "note", "damaged"


@dataclass(frozen=True)
class Finding:
    """One file, or one property of several.

    Args:
        name: The file, relative to what is checked.
        state: "ok", "note" (it differs, and nothing is wrong) or "damaged".
        words: What was found.
    """

    name: str
    state: str
    words: str


@dataclass
class Checked:
    """What is at a path.

    Args:
        path: Where.
        kind: Such as "a run folder".
        findings: What was found, in the order of reading.
        advice: What can be saved, and by which command.
    """

    path: Path
    kind: str
    findings: list[Finding] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is damaged."""
        return all(one.state != DAMAGED for one in self.findings)

    def add(self, name: str, state: str, words: str) -> None:
        """Note one finding."""
        self.findings.append(Finding(name, state, words))

    def reading(self, name: str) -> Reading:
        """Whatever the library's readers refuse inside becomes a finding."""
        return Reading(self, name)

    def merge(self, other: Checked, name: str) -> None:
        """Take over what was found in a part of this."""
        self.findings += [Finding(f"{name}/{one.name}", one.state, one.words) for one in other.findings]
        if not other.is_whole:
            self.advice += other.advice

    def lines(self) -> Iterator[str]:
        """The text of `pare check`."""
        yield f"{self.path}: {self.kind}"
        width = max((len(one.name) for one in self.findings), default=0)
        for one in self.findings:
            yield f"  {one.state:8}{one.name:{width}}  {one.words}"
        yield from self.advice or ["Everything is whole." if self.is_whole else "Nothing of it can be used."]

    def as_dict(self) -> dict[str, Any]:
        """The JSON of `pare check --json`."""
        rows = [vars(one) for one in self.findings]
        return {
            "path": str(self.path),
            "kind": self.kind,
            "whole": self.is_whole,
            "findings": rows,
            "advice": self.advice,
        }


class Reading:
    """Turns refusals into findings.

    Args:
        found: Where they go.
        name: The file that is read.
    """

    def __init__(self, found: Checked, name: str) -> None:
        self._found, self._name = found, name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> bool:
        if isinstance(error, PareError):
            self._found.add(self._name, DAMAGED, _without_path(str(error), self._found.path))
        elif isinstance(error, OSError):
            self._found.add(self._name, DAMAGED, (error.strerror or str(error)).lower())
        else:
            return False
        return True


def names(paths: Iterable[Path]) -> str:
    """Names of files, in order."""
    return ", ".join(sorted(path.name for path in paths))


def _without_path(text: str, path: Path) -> str:
    return " ".join(text.replace(f"{path}/", "").replace(f"{path}: ", "").split())
