"""Structural edits: what else happened to a module than new values. A closed set, checked before anything is done.

A finalized module may carry a plain list `paretorch_edits` of small dicts. It is stored in the artefact and replayed on
the module that a file is loaded into, so that the module has the file's shapes. Kinds:

scale   {"kind": "scale", "weight": name, "exponent": k}: the weight's grid is scaled by 2**k. The stored values hold
        the scale already; the edit lets a report read precisions exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from paretorch.errors import ArtefactError

Edit = Mapping[str, Any]
_MOST_EXPONENT = 1100  # of float64


def _scale(model: nn.Module, edit: Edit) -> None:
    if edit["weight"] not in model.state_dict():
        raise ArtefactError(f"a {edit['kind']!r} edit names a weight that {type(model).__name__} does not have")


# kind -> (the fields and their types, what replaying does)
_KINDS: dict[str, tuple[dict[str, type], Callable[[nn.Module, Edit], None]]] = {
    "scale": ({"weight": str, "exponent": int}, _scale),
}


def check_edits(edits: object) -> list[dict[str, Any]]:
    """The list itself, plain, if every edit is of a known kind with exactly its fields."""
    if not isinstance(edits, Sequence) or isinstance(edits, str):
        raise ArtefactError("paretorch_edits must be a list of dicts")
    for edit in edits:
        kind = edit.get("kind") if isinstance(edit, Mapping) else None
        if not isinstance(kind, str) or kind not in _KINDS:
            raise ArtefactError(f"unknown structural edit {str(kind)[:40]!r}; this version knows: {', '.join(_KINDS)}")
        fields = _KINDS[kind][0]
        if set(edit) != {"kind", *fields} or any(type(edit[name]) is not of for name, of in fields.items()):
            wanted = ", ".join(f"{name}: {of.__name__}" for name, of in fields.items())
            raise ArtefactError(f"a {kind!r} edit needs exactly {wanted}")
        if abs(edit.get("exponent", 0)) > _MOST_EXPONENT:
            raise ArtefactError("a 'scale' edit has an exponent that no number has")
    return [dict(edit) for edit in edits]


def replay_edits(model: nn.Module, edits: Sequence[Edit]) -> None:
    for edit in edits:
        _KINDS[edit["kind"]][1](model, edit)


def scales(edits: Sequence[Edit]) -> dict[str, int]:
    """Weight name -> exponent of its scale."""
    return {edit["weight"]: edit["exponent"] for edit in edits if edit["kind"] == "scale"}
