"""The closed set of edits: reading a list of them from a file or a module, and writing it."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from paretorch.edits.edit import Edit
from paretorch.edits.keep_channels import KeepChannels
from paretorch.edits.quantize_activation import QuantizeActivation
from paretorch.edits.scale import Scale
from paretorch.edits.share import Share
from paretorch.errors import ArtefactError

EDITS = "paretorch_edits"
"""The attribute of a finished module that lists its edits."""

KINDS: Mapping[str, type[Edit]] = {one.kind: one for one in (Scale, KeepChannels, QuantizeActivation, Share)}


def read_edits(edits: object) -> list[Edit]:
    """Check a list of edits, typed or as JSON objects, and return them typed.

    Raises `ArtefactError` for an unknown kind, fields that are missing or too many, and values that cannot be meant.
    """
    if not isinstance(edits, Sequence) or isinstance(edits, str):
        raise ArtefactError(f"{EDITS} must be a list of edits")
    return [_read(edit) for edit in edits]


def _read(edit: object) -> Edit:
    data = edit.to_json() if isinstance(edit, Edit) else edit  # typed ones may hold anything, and are checked as well
    kind = data.get("kind") if isinstance(data, Mapping) else None
    if not isinstance(data, Mapping) or not isinstance(kind, str) or kind not in KINDS:
        raise ArtefactError(f"unknown structural edit {str(kind)[:40]!r}; this version knows: {', '.join(KINDS)}")
    return KINDS[kind].from_json(data)


def write_edits(edits: object) -> list[dict[str, Any]]:
    """Check a list of edits, typed or as JSON objects, and return the JSON objects that a file stores."""
    return [edit.to_json() for edit in read_edits(edits)]


def edits_of(model: nn.Module) -> list[Edit]:
    """The edits that were made on a module, in their order; none if it says nothing of them."""
    return read_edits(getattr(model, EDITS, None) or [])
