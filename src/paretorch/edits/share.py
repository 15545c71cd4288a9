"""Layers that share tensors: weights mixed from shared tensors, W = Σ_i a_i T_i, and the edit that makes them.

The shared tensors T_i are parameters of the root module. A mixed layer has no weight of its own. It has a parametrization
whose `original` is an empty buffer and whose coefficients a_i are a parameter. These are plain modules: a network with mixed
weights trains, copies, moves and exports like any other.
"""

import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from paretorch.edits.edit import Edit, ModelInfo
from paretorch.errors import ArtefactError, ConfigError
from paretorch.support.sharded import gather

COEFFICIENTS = "sharing.s"
"""The state dict key of the coefficients, within that of the parametrization."""
_HOOKS = "_paretorch_mixed_hooks"  # attribute of a recurrent layer: its hooks
_ORDER = "_paretorch_order"  # attribute of a layer: the order of its parameters before some were mixed


class Owner(NamedTuple):
    """A module and the attribute that is the weight; a tied weight has several owners."""

    module: nn.Module
    attribute: str


class _Coefficients(nn.Module):
    """One factor per shared tensor, in float32 even if the model changes its dtype."""

    def __init__(self, count: int, device: torch.device) -> None:
        super().__init__()
        self.s = nn.Parameter(torch.zeros(count, dtype=torch.float32, device=device))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = self.s.data
        super()._apply(fn, recurse)
        if self.s.dtype != torch.float32:
            self.s.data = before.to(self.s.device)
        return self


class Mixed:
    """What reads a weight as Σ_i a_i T_i, where T_i are the parameters `names` of the root."""

    names: tuple[str, ...]
    _root: tuple[nn.Module, ...]

    @property
    def trains(self) -> bool:
        """Whether the shared tensors are trained, rather than frozen."""
        return any(getattr(self._root[0], name).requires_grad for name in self.names)

    def templates(self) -> list[Tensor]:
        """Return the shared tensors as they are mixed, whole on every rank: masked and quantized if they are."""
        return [gather(getattr(self._root[0], name)) for name in self.names]

    def mixed(self, coefficients: Tensor) -> Tensor:
        """Return Σ_i a_i T_i."""
        # One product at a time: nothing but the templates themselves is kept for the backward pass, the sum stays in
        # their dtype under autocast, and a compiler makes it one kernel.
        total: Tensor | None = None
        for factor, template in zip(coefficients.unbind(), self.templates(), strict=True):
            part = template * factor.to(template.dtype)
            total = part if total is None else total + part
        assert total is not None
        return total


class MixedWeight(Mixed, nn.Module):
    """The parametrization of a mixed weight: Σ_i a_i T_i, where T_i are the parameters `names` of the root."""

    def __init__(self, root: nn.Module, names: Sequence[str], device: torch.device) -> None:
        super().__init__()
        self.names = tuple(names)
        self.sharing = _Coefficients(len(self.names), device)
        self._root = (root,)  # in a tuple, so that the root is not registered as a child of its own layer
        self._held: tuple[Tensor, ...] = ()

    @property
    def decision(self) -> nn.Parameter:
        """The parameter that holds the coefficients."""
        return self.sharing.s

    def coefficients(self) -> Tensor:
        """Return the coefficients a, whole on every rank."""
        return gather(self.sharing.s)

    def forward(self, _: Tensor | None = None) -> Tensor:
        if self._held:
            return self._held[0]
        return self.mixed(self.coefficients())

    def hold(self, value: Tensor | None) -> None:
        """Return this value from `forward` until it is None: for layers that read a weight several times per forward pass."""
        self._held = () if value is None else (value,)


def mixed_weights(module: nn.Module) -> Iterator[tuple[str, MixedWeight]]:
    """Yield attribute and mixed weight for each mixed weight of a module."""
    if parametrize.is_parametrized(module):
        lists: Any = module.parametrizations
        yield from ((attribute, own[0]) for attribute, own in lists.items() if isinstance(own[0], MixedWeight))


def attach(owners: Sequence[Owner], mixed: MixedWeight, weight: Tensor) -> None:
    """Let every owner of `weight` read the mixture in its place."""
    empty = torch.empty(0, dtype=weight.dtype, device=weight.device)
    for module, attribute in owners:
        module.__dict__.setdefault(_ORDER, list(module._parameters))
        del module._parameters[attribute]
        module._buffers[attribute] = empty
        parametrize.register_parametrization(module, attribute, mixed, unsafe=True)
        if isinstance(module, nn.RNNBase) and _HOOKS not in module.__dict__:
            before = module.register_forward_pre_hook(_hold_weights)
            after = module.register_forward_hook(_release_weights, always_call=True)
            module.__dict__[_HOOKS] = (before, after)
            type(module)._apply = move_recurrent  # type: ignore[method-assign]  # parametrize made this class for this module
            forget_flat_weights(module)


def detach(owners: Sequence[Owner], parameter: nn.Parameter) -> None:
    """Give every owner this parameter in place of a mixture; its parameters keep their original order."""
    for module, attribute in owners:
        if isinstance(module, nn.RNNBase):
            for handle in module.__dict__.pop(_HOOKS, ()):
                handle.remove()
        # A deep copy shares the class that parametrize made, whose property is removed below.
        shared = type(module)
        module.__class__ = type(shared.__name__, shared.__bases__, dict(vars(shared)))
        parametrize.remove_parametrizations(module, attribute, leave_parametrized=False)
        module._buffers.pop(attribute, None)
        module._parameters[attribute] = parameter
        if not parametrize.is_parametrized(module):
            order = module.__dict__.pop(_ORDER)
            # A module that is the whole model, such as an LSTM, also has the shared tensors.
            module._parameters = {**{name: module._parameters[name] for name in order}, **module._parameters}
            if isinstance(module, nn.RNNBase):
                module._init_flat_weights()


def _hold_weights(module: nn.Module, _: Any) -> None:
    for _attribute, mixed in mixed_weights(module):
        mixed.hold(mixed())


def _release_weights(module: nn.RNNBase, *_: Any) -> None:
    for _attribute, mixed in mixed_weights(module):
        mixed.hold(None)
    forget_flat_weights(module)


def move_recurrent(module: nn.RNNBase, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.RNNBase:
    """Move a recurrent layer to another device or dtype without reading its weights: the shared tensors may not have moved yet."""
    nn.Module._apply(module, fn, recurse)
    forget_flat_weights(module)
    return module


class _Referent:
    """An object for a weak reference that dies at once."""


def forget_flat_weights(module: nn.RNNBase) -> None:
    """Let a recurrent layer collect its weights again at the next forward pass."""
    # The layer takes a dead reference for a changed weight and collects its weights. And `deepcopy` never meets a tensor
    # that is part of a graph.
    dead = weakref.ref(_Referent())
    module._flat_weights = []
    module._flat_weight_refs = [dead for _ in module._flat_weights_names]  # type: ignore[misc]


@dataclass(frozen=True)
class Share(Edit):
    """Mix weights from new parameters of the root, `<bank>_0`, `<bank>_1` …, whose values are in the state dict.

    Args:
        bank: The common part of the parameters' names.
        count: How many parameters there are.
        weights: The names of the weights.
        uses: For each weight, the numbers of the parameters that it is mixed from.
    """

    bank: str
    count: int
    weights: tuple[str, ...]
    uses: tuple[tuple[int, ...], ...]

    kind: ClassVar[str] = "share"
    json_fields: ClassVar[Mapping[str, type]] = {"bank": str, "count": int, "weights": list, "uses": list}

    @classmethod
    def check_json(cls, data: Mapping[str, Any]) -> None:
        count, weights, uses = data["count"], data["weights"], data["uses"]
        sound = (
            re.fullmatch(r"shared_\d{1,6}", data["bank"]) is not None
            and 0 < count <= len(weights)  # never more tensors than the module has
            and len(weights) == len(uses)
            and all(isinstance(name, str) for name in weights)
            and len(set(weights)) == len(weights)
            and all(isinstance(own, list) and 0 < len(own) <= count for own in uses)
            and all(type(i) is int and 0 <= i < count for own in uses for i in own)
        )
        if not sound:
            raise ArtefactError("A 'share' edit is damaged")

    @property
    def stored(self) -> tuple[str, ...]:
        """The names of the shared parameters."""
        return tuple(f"{self.bank}_{i}" for i in range(self.count))

    def check(self, info: ModelInfo) -> None:
        self._weights(info.model)

    def apply(self, model: nn.Module) -> None:
        """Make the edit in place. The new parameters are zeros, to be filled. If the edit does not fit, nothing changes."""
        found = self._weights(model)
        like = found[0][0]
        trained = any(weight.requires_grad for weight, _ in found)
        for name in self.stored:
            model.register_parameter(name, nn.Parameter(torch.zeros_like(like).detach(), trained))
        for (weight, owners), own in zip(found, self.uses, strict=True):
            mixed = MixedWeight(model, [self.stored[i] for i in own], like.device)
            mixed.requires_grad_(trained).train(owners[0].module.training)
            attach(owners, mixed, weight)

    def renamed(self, name: Callable[[str], str]) -> Self:
        if name("") != "":  # the shared parameters belong to the root
            raise ConfigError(
                f"{name('')!r} has layers that share weights, which only a whole network can say of itself: save, load and "
                "report that module alone"
            )
        return self

    def _weights(self, model: nn.Module) -> list[tuple[nn.Parameter, list[Owner]]]:
        """Return each weight with its owners."""
        known = _weights_by_name(model)
        if missing := [name for name in self.weights if name not in known]:
            module, _, attribute = missing[0].rpartition(".")
            if f"{module}.parametrizations.{attribute}.0.{COEFFICIENTS}".lstrip(".") in model.state_dict():
                raise ConfigError(f"{missing[0]} is shared already: give the network as it was before it was folded")
            raise ConfigError(f"There is no weight {missing[0]} to share")
        found = [known[name] for name in self.weights]
        like = found[0][0]
        if any(weight.shape != like.shape or weight.dtype != like.dtype for weight, _ in found):
            raise ConfigError(f"{self.weights[0]} and the weights that share with it differ in shape or dtype")
        if any(hasattr(model, name) for name in self.stored):
            raise ConfigError(f"The network already has a {self.bank}_0")
        return found


def _weights_by_name(model: nn.Module) -> dict[str, tuple[nn.Parameter, list[Owner]]]:
    """Return every parameter of two or more dimensions with its owners, by its first name."""
    owners: dict[int, list[Owner]] = {}
    found: dict[str, tuple[nn.Parameter, list[Owner]]] = {}
    for path, module in model.named_modules():
        for attribute, weight in module._parameters.items():
            if weight is None or weight.dim() < 2 or not weight.numel():
                continue
            if not (weight.is_floating_point() or weight.is_complex()):
                continue
            if id(weight) not in owners:
                own = owners.setdefault(id(weight), [])
                found[f"{path}.{attribute}" if path else attribute] = (weight, own)
            owners[id(weight)].append(Owner(module, attribute))
    return found


def unshare(root: nn.Module) -> None:
    """Undo all `Share` edits of a network: each layer gets a weight of its own, and the shared parameters are removed."""
    owners: dict[MixedWeight, list[Owner]] = {}
    for module in root.modules():
        for attribute, mixed in mixed_weights(module):
            owners.setdefault(mixed, []).append(Owner(module, attribute))
    with torch.no_grad():
        values = {mixed: nn.Parameter(mixed().clone(), mixed.trains) for mixed in owners}
    for mixed, own in owners.items():
        detach(own, values[mixed])
    for name in {name for mixed in owners for name in mixed.names}:
        delattr(root, name)
