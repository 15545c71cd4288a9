"""What `optimize` chose, layer by layer, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Choice:
    """One layer: what it became, why, and the median milliseconds of everything that was tried on it."""

    layer: str
    chosen: str
    reason: str
    milliseconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Account:
    """The choices, and what they gave together: the model's median milliseconds before and after, and the largest
    difference of an output, relative to the largest output."""

    choices: tuple[Choice, ...]
    changed: bool
    reason: str
    before_ms: float | None = None
    after_ms: float | None = None
    difference: float | None = None

    def __str__(self) -> str:
        names = [choice.layer for choice in self.choices]
        wide = max([len(name) for name in [*names, "model"]])
        kinds = max([len(choice.chosen) for choice in self.choices] + [len("dense")])
        rows = [f"{c.layer:{wide}}  {c.chosen:{kinds}}  {c.reason}" for c in self.choices]
        verdict = "faster" if self.changed else "as it was"
        return "\n".join([*rows, f"{'model':{wide}}  {verdict}: {self.reason}"])
