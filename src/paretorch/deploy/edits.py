"""Structural edits: what else happened to a module than new values. A closed set, checked before anything is done.

A finalized module may carry a plain list `paretorch_edits` of small dicts. It is stored in the artefact and replayed on
the module that a file is loaded into, so that the module has the file's shapes. Kinds:

scale          {"kind": "scale", "weight": name, "exponent": k}: the weight's grid is scaled by 2**k, k not 0. The stored values
               hold the scale already; the edit lets a report read precisions exactly.
keep_channels  {"kind": "keep_channels", "keep": hexadecimal, "size": n, "out": modules, "in": modules}: of n channels
               those stay whose bit is set (see `paretorch.core.channels.cut`).
quantize_activation  {"kind": "quantize_activation", "modules": names, "grid": shape}: the activation under these names
               becomes a `QuantizedActivation` with a map of this shape; its levels and range are in the state.
share          {"kind": "share", "bank": "shared_<n>", "count": k, "weights": names, "uses": lists}: the weights are mixed from
               k parameters of the root, each from those that it uses; numbers and coefficients are in the state.
"""

from __future__ import annotations

import copy
import math
import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from paretorch.core.attach.templates import share
from paretorch.core.channels.cut import keep_channels
from paretorch.deploy.measure.sizes import TensorSize
from paretorch.errors import ArtefactError, ConfigError
from paretorch.methods.precision.activations_quantized import ADDED, KIND, MOST_STEPS, replay
from paretorch.methods.precision.grid import MAX_BITS

Edit = Mapping[str, Any]
_MOST_EXPONENT = 1100  # of float64
_MOST_CHANNELS = 2**20
_MOST_DIMENSIONS = 8
_MOST_WORDS = 300  # letters of an error that a forged name could fill
_CHANNELS = (
    "in_channels",
    "out_channels",
    "in_features",
    "out_features",
    "num_features",
    "num_channels",
    "num_parameters",
)


def _scale(model: nn.Module, edit: Edit) -> None:
    """Nothing: the values hold the scale. That there is such a weight is looked up for all scales at once."""


def _quantize_activation(model: nn.Module, edit: Edit) -> None:
    replay(model, edit["modules"], edit["grid"])


def _share(model: nn.Module, edit: Edit) -> None:
    share(model, edit["bank"], edit["count"], edit["weights"], edit["uses"])


# kind -> (the fields and their types, what replaying does)
_KINDS: dict[str, tuple[dict[str, type], Callable[[nn.Module, Edit], None]]] = {
    "scale": ({"weight": str, "exponent": int}, _scale),
    "keep_channels": ({"keep": str, "size": int, "out": list, "in": list}, keep_channels),
    KIND: ({"modules": list, "grid": list}, _quantize_activation),
    "share": ({"bank": str, "count": int, "weights": list, "uses": list}, _share),
}


def _replay(model: nn.Module, edit: Edit) -> None:
    try:
        _KINDS[edit["kind"]][1](model, edit)
    except ConfigError as error:
        words = str(error)
        reason = words if len(words) <= _MOST_WORDS else f"{words[:_MOST_WORDS]}…"  # a forged name may be endless
        raise ArtefactError(f"the file does not fit this {type(model).__name__}: {reason}") from error


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
        if kind == "keep_channels" and not _is_sound(edit):
            raise ArtefactError("a 'keep_channels' edit is damaged")
        if kind == "share" and not _is_bank(edit):
            raise ArtefactError("a 'share' edit is damaged")
        if kind == KIND and not _is_map(edit):
            raise ArtefactError(f"a {KIND!r} edit is damaged")
    return [dict(edit) for edit in edits]


def _is_sound(edit: Edit) -> bool:
    """An edit takes a channel or more from a module or more: so there are no more edits than a module has channels."""
    digits, names = edit["keep"], [*edit["out"], *edit["in"]]
    return (
        0 < edit["size"] <= _MOST_CHANNELS
        and 0 < len(digits) <= edit["size"] // 4 + 1
        and set(digits) <= set(string.hexdigits)
        and int(digits, 16) != (1 << edit["size"]) - 1
        and len(names) > 0
        and all(isinstance(name, str) for name in names)
    )


def _is_map(edit: Edit) -> bool:
    names, grid = edit["modules"], edit["grid"]
    return (
        len(names) > 0
        and all(isinstance(name, str) and name for name in names)
        and len(grid) <= _MOST_DIMENSIONS
        and all(type(n) is int and 0 < n <= MOST_STEPS for n in grid)
        and math.prod(grid) <= MOST_STEPS
    )


def _is_bank(edit: Edit) -> bool:
    count, weights, uses = edit["count"], edit["weights"], edit["uses"]
    return (
        re.fullmatch(r"shared_\d{1,6}", edit["bank"]) is not None
        and 0 < count <= len(weights)  # never more than the module has
        and len(weights) == len(uses)
        and all(isinstance(name, str) for name in weights)
        and len(set(weights)) == len(weights)
        and all(isinstance(own, list) and 0 < len(own) <= count for own in uses)
        and all(type(i) is int and 0 <= i < count for own in uses for i in own)
    )


def restructure(model: nn.Module, edits: Sequence[Edit]) -> None:
    """Replay the edits that change which tensors a state names."""
    for edit in edits:
        if edit["kind"] == "share":
            _replay(model, edit)


def added_names(edits: Sequence[Edit]) -> set[str]:
    """The tensors that a state has because of the edits."""
    return {f"{name}.{leaf}" for edit in edits if edit["kind"] == KIND for name in edit["modules"] for leaf in ADDED}


def added_bytes(edits: Sequence[Edit]) -> int:
    """Memory that the edits' own tensors take."""
    return sum(4 * math.prod(edit["grid"]) + 8 for edit in edits if edit["kind"] == KIND)


@contextmanager
def replayed(model: nn.Module, edits: Sequence[Edit]) -> Iterator[None]:
    """Replay the edits on the model, unless it has its structure already; whatever fails then or inside undoes them.

    Afterwards the model's list is the file's. Where that says nothing of the structure, the model keeps what it says of it.
    """
    there = _structure(getattr(model, "paretorch_edits", None) or ())
    after = list(edits) if _structure(edits) else [*there, *edits]
    if _structure(edits) == there:
        edits = [edit for edit in edits if edit["kind"] == "scale"]
    named = {name for edit in edits for side in ("out", "in") for name in edit.get(side, ())}
    modules = [module for name, module in model.named_modules() if name in named]
    before = [(module, vars(module).copy(), _tensors(module)) for module in modules]
    children = [(module, module._modules.copy()) for module in model.modules()]
    shares = any(edit["kind"] == "share" for edit in edits)
    whole = [_inside(module) for module in model.modules()] if shares else []
    try:
        _check_sizes(model, edits)
        for edit in edits:
            _replay(model, edit)
        _check_scales(model, edits)
        yield
    except BaseException:
        for module, attributes, tensors in before:
            vars(module).update(attributes)
            for tensor, data in tensors:
                tensor.data = data
        for module, own in children:
            module._modules.update(own)
        for module, kind, attributes in whole:
            module.__class__ = kind
            vars(module).clear()
            vars(module).update(attributes)
        raise
    if after or hasattr(model, "paretorch_edits"):
        model.paretorch_edits = [dict(edit) for edit in after]  # type: ignore[assignment]


def _structure(edits: Sequence[Edit]) -> list[Edit]:
    """All but the scales, which are about values."""
    return [edit for edit in edits if edit["kind"] != "scale"]


def _check_sizes(model: nn.Module, edits: Sequence[Edit]) -> None:
    """No edit is for more channels than the model has anywhere: a forged number of them would take long to look through."""
    sizes = (getattr(module, name, 0) for module in model.modules() for name in _CHANNELS)
    widest = max((size for size in sizes if isinstance(size, int)), default=0)
    if any(edit.get("size", 0) > widest for edit in edits):
        raise ArtefactError(f"the file does not fit this {type(model).__name__}: it cuts layers larger than any")


def _check_scales(model: nn.Module, edits: Sequence[Edit]) -> None:
    names = set(model.state_dict())
    for edit in edits:
        if edit["kind"] == "scale" and edit["weight"] not in names:
            raise ArtefactError(f"the file does not fit this {type(model).__name__}: it has no {edit['weight'][:80]!r}")


def _inside(module: nn.Module) -> tuple[nn.Module, type, dict[str, Any]]:
    """Class and attributes of a module, with copies of what registers parameters, buffers, children and hooks."""
    return module, type(module), {k: copy.copy(v) if isinstance(v, dict) else v for k, v in vars(module).items()}


def _tensors(module: nn.Module) -> list[tuple[Any, Any]]:
    return [(one, one.data) for one in (*module._parameters.values(), *module._buffers.values()) if one is not None]


def on_their_grids(tensors: Mapping[str, TensorSize], edits: Sequence[Edit]) -> dict[str, TensorSize]:
    """Precisions as the methods count them: on a grid of the scale that an edit names, or of chapter 5's own, within ±2.

    Read off the values alone, a grid is as small as the largest of them allows, and ±½ of 2 bits would have one. What is
    mixed from shared tensors has no edit for its grid, and is left as it was read; so is a grid finer than any of ours.
    """
    named = {edit["weight"]: edit["exponent"] for edit in edits if edit["kind"] == "scale"}
    banks = {f"{edit['bank']}_{i}" for edit in edits if edit["kind"] == "share" for i in range(edit["count"])}
    found = {}
    for name, size in tensors.items():
        known = name in named or (len(size.shape) > 1 and name not in banks)
        seen = size.rescaled(named.get(name, 0)) if known else size
        found[name] = seen if name in named or max(seen.precisions, default=0) <= MAX_BITS else size
    return found
