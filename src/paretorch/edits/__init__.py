"""Structural edits: changes of a network other than new values. A closed set of typed objects.

A finished module lists its edits in `paretorch_edits`. A file stores the list as JSON, and `load` makes the same edits on the
module that it fills, so that the module gets the file's shapes. The modules that edits put into a network (quantized
activations, weights mixed from shared tensors) are plain modules of this package.
"""

from collections.abc import Container, Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn

from paretorch.edits.edit import Edit, ModelInfo
from paretorch.edits.keep_channels import KeepChannels
from paretorch.edits.quantize_activation import QuantizeActivation, QuantizedActivation
from paretorch.edits.scale import Scale
from paretorch.edits.share import Share
from paretorch.errors import ArtefactError

__all__ = [
    "EDITS",
    "Edit",
    "KeepChannels",
    "ModelInfo",
    "QuantizeActivation",
    "QuantizedActivation",
    "Scale",
    "Share",
    "edits_of",
    "forget_scales",
    "read_edits",
    "write_edits",
]

EDITS = "paretorch_edits"
"""The attribute of a finished module that lists its edits."""

KINDS: Mapping[str, type[Edit]] = {one.kind: one for one in (Scale, KeepChannels, QuantizeActivation, Share)}


def read_edits(edits: object) -> list[Edit]:
    """Check a list of edits, typed or as JSON objects, and return it typed.

    Raises `ArtefactError` for an unknown kind, for fields that are missing or too many, and for impossible values.
    """
    if not isinstance(edits, Sequence) or isinstance(edits, str):
        raise ArtefactError(f"{EDITS} must be a list of edits")
    return [_read(edit) for edit in edits]


def _read(edit: object) -> Edit:
    data = edit.to_json() if isinstance(edit, Edit) else edit  # typed edits may hold anything, so they are checked too
    kind = data.get("kind") if isinstance(data, Mapping) else None
    if not isinstance(data, Mapping) or not isinstance(kind, str) or kind not in KINDS:
        raise ArtefactError(f"Unknown structural edit {str(kind)[:40]!r}; this version knows: {', '.join(KINDS)}")
    return KINDS[kind].from_json(data)


def write_edits(edits: object) -> list[dict[str, Any]]:
    """Check a list of edits, typed or as JSON objects, and return the JSON objects that a file stores."""
    return [edit.to_json() for edit in read_edits(edits)]


def edits_of(model: nn.Module) -> list[Edit]:
    """Return the edits that were made on a module, in order; an empty list if the module has none.

    If the module lists none, but modules inside of it do, such as the network in a wrapper, these are returned, by the names in the module.
    """
    # Not getattr: wrappers such as PEFT's forward it to the network inside, whose edits have other names here.
    own = vars(model).get(EDITS)
    if own:
        return [edit.renamed(partial(_moved, model)) for edit in read_edits(own)]
    found: list[Edit] = []
    done: list[str] = []
    for name, module in model.named_modules():
        inner = vars(module).get(EDITS) if not name.startswith(tuple(done)) else None
        if inner:
            done.append(f"{name}.")
            found += [edit.renamed(partial(_moved, model, prefix=f"{name}.")) for edit in read_edits(inner)]
    return found


def forget_scales(model: nn.Module, weights: Container[str]) -> None:
    """Drop what the edits of a module say of the grids of these weights, which get other values."""
    for name, module in model.named_modules():
        if own := vars(module).get(EDITS):
            module.__dict__[EDITS] = [
                edit
                for edit in read_edits(own)
                if not (isinstance(edit, Scale) and f"{name}.{edit.weight}".lstrip(".") in weights)
            ]


def _moved(model: nn.Module, name: str, prefix: str = "") -> str:
    """Return the name in the model of a module of the part at `prefix`; adapters of PEFT have put a layer of theirs around it."""
    name = f"{prefix}{name}".removesuffix(".")
    module: nn.Module | None = model
    for part in name.split(".") if name else ():
        module = None if module is None else module._modules.get(part)
    while module is not None and getattr(module, "adapter_layer_names", None):
        module = module._modules.get("base_layer")
        name = name if module is None else f"{name}.base_layer"
    return name
