"""From a checked file into a module: builds the zoo network, replays the structural edits, fills and ties the tensors.

If anything fails, the module is as it was before.
"""

from __future__ import annotations

import contextlib
import copy
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _EXTRA_STATE_KEY_SUFFIX, register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from paretorch.deploy.codec.container import BlobReader, storage_key
from paretorch.deploy.packed.weights import PackedWeights
from paretorch.edits import EDITS, Edit, KeepChannels, ModelInfo, Share, edits_of
from paretorch.errors import ArtefactError, ConfigError, PareError

_MAX_REASON = 300  # characters of an error, which a forged name could fill
_MAX_OPTION = 1 << 20  # a number in a zoo network's name or options
_DRAWS = (Tensor.normal_, Tensor.uniform_)


def build(reader: BlobReader, edits: Sequence[Edit] = ()) -> nn.Module:
    """Build the zoo network that the file names, in eval mode, after checking that it is no larger than the file allows.

    Its names are compared as they will be after the structural edits, which are replayed later. If all that it holds is in the file,
    its tensors are on the meta device: to fill them with random numbers first takes as long as to decode them.
    """
    zoo = reader.head.get("zoo")
    if zoo is None:
        raise ArtefactError("The file names no zoo network; pass the module to fill: load(path, into=model)")
    if not (isinstance(zoo, list) and len(zoo) == 2 and isinstance(zoo[0], str) and isinstance(zoo[1], dict)):
        raise ArtefactError("The artefact's zoo entry is not a name with options")
    if not all(abs(number) <= _MAX_OPTION for number in _numbers(zoo)):
        raise ArtefactError("The artefact names a zoo network of an impossible size")
    from paretorch.zoo import build as build_network

    try:
        empty = _build_empty(reader, zoo)
        if sum(tensor.numel() * tensor.element_size() for tensor in empty.state_dict().values()) > reader.limit:
            raise ArtefactError("The artefact names a zoo network too large for a file of this size")
        _replay(empty, [edit for edit in edits if isinstance(edit, Share)])  # which change the names in a state dict
        added = {name for edit in edits for name in edit.added_names()}
        _check_names(empty, [name for name in reader.names if name not in added])
        if not any(edit.structural for edit in edits) and not any(
            m._non_persistent_buffers_set for m in empty.modules()
        ):
            return empty.eval()
        return build_network(zoo[0], **zoo[1]).eval()
    except ArtefactError:
        raise
    except (PareError, TypeError, ValueError, RuntimeError, ArithmeticError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ArtefactError(f"The zoo network that the artefact names cannot be built: {reason}") from error


def _build_empty(reader: BlobReader, zoo: list[Any]) -> nn.Module:
    """Build a zoo network on the meta device, which takes no memory."""
    from paretorch.zoo import build as build_network

    with torch.device("meta"), Blank(), _at_most(2 * len(reader.names) + 64):
        return build_network(zoo[0], **zoo[1])


class Blank(TorchFunctionMode):
    """Skip the initialization of weights: on the meta device it has no effect, and importing torch's compiler takes seconds."""

    def __torch_function__(self, func: Any, _: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _DRAWS or getattr(func, "__module__", "") == nn.init.__name__:
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


def _numbers(value: Any) -> Iterator[float]:
    """Yield every number in nested JSON, including those in strings, and a large number for a long string."""
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
    """Raise once more parameters than this are registered, so that a forged depth does not take forever."""
    left, here = count, threading.get_ident()

    def hook(*_: object) -> None:
        nonlocal left
        left -= threading.get_ident() == here
        if left < 0:
            raise ArtefactError("The artefact names a zoo network with more tensors than the file holds")

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
        raise ArtefactError(f"The file does not fit {type(module).__name__}: it {' and '.join(parts)}")


@contextlib.contextmanager
def replayed(model: nn.Module, edits: Sequence[Edit]) -> Iterator[None]:
    """Make the edits on the model, unless it already has its structure; undo them if anything raises here or inside.

    Afterwards the model's list of edits is the file's. If the file lists no structural edits, the model keeps those it lists.
    """
    present, wanted = ([edit for edit in some if edit.structural] for some in (edits_of(model), edits))
    after = list(edits) if wanted else [*present, *edits]
    missing = [] if wanted == present else wanted
    undo = _snapshot(model, missing)
    try:
        _replay(model, missing)
        _replay(model, [edit for edit in edits if not edit.structural])
        yield
    except BaseException:
        undo()
        raise
    if after or EDITS in vars(model):
        setattr(model, EDITS, after)


def _replay(model: nn.Module, edits: Sequence[Edit]) -> None:
    if not edits:
        return
    info = ModelInfo(model)  # made here, since earlier edits may have changed the names
    for edit in edits:
        try:
            edit.check(info)
            edit.apply(model)
        except ConfigError as error:
            text = str(error)
            reason = text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]}…"
            raise ArtefactError(f"The file does not fit this {type(model).__name__}: {reason}") from error


def _snapshot(model: nn.Module, edits: Sequence[Edit]) -> Callable[[], None]:
    """Record what the edits may change, and return a function that restores it."""
    cut = {name for edit in edits if isinstance(edit, KeepChannels) for name in (*edit.outputs, *edit.inputs)}
    modules = [module for name, module in model.named_modules() if name in cut]
    before = [(module, vars(module).copy(), _tensors(module)) for module in modules]
    children = [(module, module._modules.copy()) for module in model.modules()]
    shares = any(isinstance(edit, Share) for edit in edits)  # these also change the classes of modules
    whole = [_copied(module) for module in model.modules()] if shares else []

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


def _copied(module: nn.Module) -> tuple[nn.Module, type, dict[str, Any]]:
    """Return a module, its class and its attributes, with copies of the dicts of parameters, buffers, children and hooks."""
    return module, type(module), {k: copy.copy(v) if isinstance(v, dict) else v for k, v in vars(module).items()}


def _tensors(module: nn.Module) -> list[tuple[Any, Any]]:
    return [(one, one.data) for one in (*module._parameters.values(), *module._buffers.values()) if one is not None]


def fill(module: nn.Module, reader: BlobReader, packed: bool = False) -> nn.Module:
    """Copy every tensor of the file into the module, tie those that are tied in the file, and set extra states.

    Tensors on the meta device get memory on the CPU.

    Args:
        packed: Put layers with packed weights in the places of those whose weights have few bits. Their dense weights are not made.

    Returns:
        The module, or the packed layer if it is one itself.
    """
    _check_names(module, reader.names)
    places = _allocated(module)
    state: dict[str, Tensor] = {
        name: places.get(id(tensor), tensor).detach() if isinstance(tensor, Tensor) else tensor
        for name, tensor in module.state_dict(keep_vars=True).items()
    }
    if bare := [name for name, tensor in state.items() if isinstance(tensor, Tensor) and tensor.is_meta]:
        raise ConfigError(
            f"{bare[0]} has no memory to be filled (meta device): allocate it with module.to_empty(device=...)"
        )
    if spread := [name for name, tensor in state.items() if _repeats(tensor)]:
        raise ConfigError(f"{spread[0]} repeats its memory, as after expand(): give it memory of its own with clone()")
    written: dict[Any, str] = {}

    def tensor_of(name: str) -> Tensor:
        key = storage_key(state[name])
        if key is not None and written.setdefault(key, name) != name:
            raise ArtefactError(f"{name} and {written[key]} are one tensor in the module and two in the file")
        return state[name]

    weights = PackedWeights(module) if packed else None
    most = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    ties = []
    for name, one in reader.tensors(state, most, tensor_of, () if weights is None else weights.names):
        if isinstance(one, str):
            ties.append((name, one))
        elif weights is not None and name in weights.names:
            weights.take(name, one, tensor_of(name))
    _install(module, places)
    for name, first in ties:
        if weights is None or not weights.tie(name, first, state[name]):
            _tie(module, state, name, first)
    for name, tensor in state.items():
        path, _, leaf = name.rpartition(".")
        if leaf == _EXTRA_STATE_KEY_SUFFIX:  # not a tensor of the module, but made for the state dict
            module.get_submodule(path).set_extra_state(tensor)
    return module if weights is None else weights.swap()


def _allocated(module: nn.Module) -> dict[int, Tensor]:
    """Return, by the id of each tensor of the module that has no memory (meta device), one on the CPU that has."""
    found: dict[int, Tensor] = {}
    for path, own in module.named_modules():
        for kind in (own._parameters, own._buffers):
            for name, tensor in kind.items():
                if tensor is None or not tensor.is_meta or id(tensor) in found:
                    continue
                if name in own._non_persistent_buffers_set:
                    raise ConfigError(
                        f"{path}.{name} has no memory (meta device), and is in no file: compute it, and give the module to load "
                        "again; module.to_empty(device=...) allocates it"
                    )
                # Not empty_like, which imports all of torch's compiler for a tensor without memory.
                made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
                is_parameter = isinstance(tensor, nn.Parameter)
                found[id(tensor)] = nn.Parameter(made, tensor.requires_grad) if is_parameter else made
    return found


def _install(module: nn.Module, places: Mapping[int, Tensor]) -> None:
    """Put the tensors that were allocated where those without memory were; tied ones stay tied."""
    for own in module.modules() if places else ():
        kinds: tuple[dict[str, Any], ...] = (own._parameters, own._buffers)
        for kind in kinds:
            kind.update({name: places[id(tensor)] for name, tensor in kind.items() if id(tensor) in places})


def _some(names: set[str]) -> str:
    shown = [name if name.isprintable() and len(name) < 80 else repr(name[:40]) for name in sorted(names)[:3]]
    return ", ".join(shown) + (f" and {len(names) - len(shown)} more" if len(names) > len(shown) else "")


def _repeats(tensor: Tensor) -> bool:
    return any(step == 0 and length > 1 for step, length in zip(tensor.stride(), tensor.shape, strict=True))


def _tie(module: nn.Module, state: Mapping[str, Tensor], name: str, first: str) -> None:
    """Make `name` the same tensor as `first`; if one is a parameter and one a buffer, make their values equal."""
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
