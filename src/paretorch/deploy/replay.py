"""Replaying the structural edits of a file on the module that it fills; whatever fails is undone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from paretorch.edits import EDITS, Edit, KeepChannels, ModelInfo, Share, edits_of
from paretorch.errors import ArtefactError, ConfigError

_MAX_REASON = 300  # characters of an error that a forged name could fill


def replay_names(model: nn.Module, edits: Sequence[Edit]) -> None:
    """Make the edits that change which tensors a state dict names."""
    _replay(model, [edit for edit in edits if isinstance(edit, Share)])


@contextmanager
def replayed(model: nn.Module, edits: Sequence[Edit]) -> Iterator[None]:
    """Make the edits on the model, unless it has its structure already; whatever fails then or inside undoes them.

    Afterwards the model's list is the file's. If that says nothing of the structure, the model keeps what it says of it.
    """
    there, wanted = _structure(edits_of(model)), _structure(edits)
    after = list(edits) if wanted else [*there, *edits]
    undo = _snapshot(model, [] if wanted == there else wanted)
    try:
        _replay(model, [] if wanted == there else wanted)
        _replay(model, [edit for edit in edits if not edit.structural])
        yield
    except BaseException:
        undo()
        raise
    if after or hasattr(model, EDITS):
        setattr(model, EDITS, after)


def _structure(edits: Sequence[Edit]) -> list[Edit]:
    """All but those about values."""
    return [edit for edit in edits if edit.structural]


def _replay(model: nn.Module, edits: Sequence[Edit]) -> None:
    if not edits:
        return
    info = ModelInfo(model)  # edits that were made before may have changed the names
    for edit in edits:
        try:
            edit.check(info)
            edit.apply(model)
        except ConfigError as error:
            words = str(error)
            reason = words if len(words) <= _MAX_REASON else f"{words[:_MAX_REASON]}…"  # a forged name may be endless
            raise ArtefactError(f"the file does not fit this {type(model).__name__}: {reason}") from error


def _snapshot(model: nn.Module, edits: Sequence[Edit]) -> Callable[[], None]:
    """Note what the edits may change; the function that is returned brings it back."""
    cut = {name for edit in edits if isinstance(edit, KeepChannels) for name in (*edit.outputs, *edit.inputs)}
    modules = [module for name, module in model.named_modules() if name in cut]
    before = [(module, vars(module).copy(), _tensors(module)) for module in modules]
    children = [(module, module._modules.copy()) for module in model.modules()]
    shares = any(isinstance(edit, Share) for edit in edits)  # which change the classes of modules, too
    whole = [_inside(module) for module in model.modules()] if shares else []

    def undo() -> None:
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

    return undo


def _inside(module: nn.Module) -> tuple[nn.Module, type, dict[str, Any]]:
    """Class and attributes of a module, with copies of what registers parameters, buffers, children and hooks."""
    return module, type(module), {k: copy.copy(v) if isinstance(v, dict) else v for k, v in vars(module).items()}


def _tensors(module: nn.Module) -> list[tuple[Any, Any]]:
    return [(one, one.data) for one in (*module._parameters.values(), *module._buffers.values()) if one is not None]
