"""From a checked file into a module: which module, whether it fits, and its tensors filled and tied."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _EXTRA_STATE_KEY_SUFFIX, register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from paretorch.deploy.codec.container import BlobReader, storage_key
from paretorch.deploy.replay import replay_names
from paretorch.edits import Edit
from paretorch.errors import ArtefactError, ConfigError, PareError

_MOST_OPTION = 1 << 20  # a number in a zoo network's name or options
_DRAWS = (Tensor.normal_, Tensor.uniform_)


def build(reader: BlobReader, edits: Sequence[Edit] = ()) -> nn.Module:
    """The zoo network that the file names, in eval mode, once it is known to be no larger than the file allows.

    Its names are compared as they will be after the structural edits, which are not replayed yet.
    """
    zoo = reader.head.get("zoo")
    if zoo is None:
        raise ArtefactError("the file names no zoo network; pass the module to fill: load(path, into=model)")
    if not (isinstance(zoo, list) and len(zoo) == 2 and isinstance(zoo[0], str) and isinstance(zoo[1], dict)):
        raise ArtefactError("the artefact's zoo entry is not a name with options")
    if not all(abs(number) <= _MOST_OPTION for number in _numbers(zoo)):
        raise ArtefactError("the artefact names a zoo network larger than any")
    from paretorch.zoo import build as build_network

    try:
        with torch.device("meta"), Blank(), _at_most(2 * len(reader.names) + 64):  # takes no memory
            bare = build_network(zoo[0], **zoo[1])
        if sum(tensor.numel() * tensor.element_size() for tensor in bare.state_dict().values()) > reader.limit:
            raise ArtefactError("the artefact names a zoo network too large for a file of this size")
        replay_names(bare, edits)
        added = {name for edit in edits for name in edit.added_names()}
        _check_names(bare, [name for name in reader.names if name not in added])
        return build_network(zoo[0], **zoo[1]).eval()
    except ArtefactError:
        raise
    except (PareError, TypeError, ValueError, RuntimeError, ArithmeticError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ArtefactError(f"the zoo network that the artefact names cannot be built: {reason}") from error


class Blank(TorchFunctionMode):
    """Draws no weights: on the meta device there is nothing to draw, and trying imports torch's compiler, for seconds."""

    def __torch_function__(self, func: Any, _: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _DRAWS or getattr(func, "__module__", "") == nn.init.__name__:
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


def _numbers(value: Any) -> Iterator[float]:
    """Every number in nested JSON, those inside words too; a very long word counts as its length."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, str):
        yield from (float(digits) for digits in re.findall(r"\d+", value[:300]))
        yield len(value) << 13
    elif isinstance(value, int | float):
        yield value


@contextlib.contextmanager
def _at_most(count: int) -> Iterator[None]:
    """Stop whoever registers more parameters than this: a forged depth must not keep us building."""
    left, here = count, threading.get_ident()

    def hook(*_: object) -> None:
        nonlocal left
        left -= threading.get_ident() == here
        if left < 0:
            raise ArtefactError("the artefact names a zoo network with more tensors than the file holds")

    handle = register_module_parameter_registration_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def _check_names(module: nn.Module, names: list[str]) -> None:
    state = module.state_dict()
    missing, extra = set(state) - set(names), set(names) - set(state)
    if missing or extra:
        parts = [f"lacks {_some(missing)}"] if missing else []
        parts += [f"has {_some(extra)} too many"] if extra else []
        raise ArtefactError(f"the file does not fit {type(module).__name__}: it {' and '.join(parts)}")


def fill(module: nn.Module, reader: BlobReader) -> None:
    """Copy every tensor of the file into the module, tie what the file ties, and give modules their extra state."""
    _check_names(module, reader.names)
    state: dict[str, Tensor] = module.state_dict()
    if bare := [name for name, tensor in state.items() if tensor.is_meta]:
        raise ConfigError(
            f"{bare[0]} has no memory to be filled (meta device): give the module some with module.to_empty(device=...)"
        )
    if spread := [name for name, tensor in state.items() if _repeats(tensor)]:
        raise ConfigError(f"{spread[0]} repeats its memory, as after expand(): give it memory of its own with clone()")
    written: dict[Any, str] = {}

    def room(name: str) -> Tensor:
        key = storage_key(state[name])
        if key is not None and written.setdefault(key, name) != name:
            raise ArtefactError(f"{name} and {written[key]} are one tensor in the module and two in the file")
        return state[name]

    most = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    for name, tensor in reader.tensors(state, most, room):
        if isinstance(tensor, str):
            _tie(module, state, name, tensor)
    for name, tensor in state.items():
        path, _, leaf = name.rpartition(".")
        if leaf == _EXTRA_STATE_KEY_SUFFIX:  # no tensor of the module, which made it for the state
            module.get_submodule(path).set_extra_state(tensor)


def _some(names: set[str]) -> str:
    shown = [name if name.isprintable() and len(name) < 80 else repr(name[:40]) for name in sorted(names)[:3]]
    return ", ".join(shown) + (f" and {len(names) - len(shown)} more" if len(names) > len(shown) else "")


def _repeats(tensor: Tensor) -> bool:
    return any(step == 0 and length > 1 for step, length in zip(tensor.stride(), tensor.shape, strict=True))


def _tie(module: nn.Module, state: Mapping[str, Tensor], name: str, first: str) -> None:
    """Let `name` be the very tensor that `first` is; a parameter and a buffer, which no name can be both of, are equal."""
    if storage_key(state[name]) == storage_key(state[first]):
        return
    path, _, leaf = name.rpartition(".")
    first_path, _, first_leaf = first.rpartition(".")
    owner, source = module.get_submodule(path), module.get_submodule(first_path)
    for kind in ("_parameters", "_buffers"):
        if leaf in getattr(owner, kind) and first_leaf in getattr(source, kind):
            getattr(owner, kind)[leaf] = getattr(source, kind)[first_leaf]
            return
    state[name].copy_(state[first])
