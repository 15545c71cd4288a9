"""A weight that is mixed from tensors that several layers share: W = Σ_i a_i T_i.

The shared tensors T_i are parameters of the root module. A mixed layer has no weight of its own: it has a
parametrization whose `original` is an empty buffer and whose coefficients a_i are a parameter. These are plain modules;
a network with mixed weights trains, copies, moves and exports like any other.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from paretorch.support.sharded import gather

COEFFICIENTS = "sharing.s"
"""The state dict key of the coefficients, below that of the parametrization."""
_HOOKS = "_paretorch_mixed_hooks"  # of a recurrent layer
_ORDER = "_paretorch_order"  # of a layer's parameters, before some of them became mixtures


class Owner(NamedTuple):
    """A module and the attribute that is the weight; a tied weight has several owners."""

    module: nn.Module
    attribute: str


class _Coefficients(nn.Module):
    """One factor per shared tensor. They stay float32 if the model changes its dtype."""

    def __init__(self, count: int, device: torch.device) -> None:
        super().__init__()
        self.s = nn.Parameter(torch.zeros(count, dtype=torch.float32, device=device))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = self.s.data
        super()._apply(fn, recurse)
        if self.s.dtype != torch.float32:
            self.s.data = before.to(self.s.device)
        return self


class MixedWeight(nn.Module):
    """The parametrization of a mixed weight: Σ_i a_i T_i, T_i the parameters `names` of the root."""

    def __init__(self, root: nn.Module, names: Sequence[str], device: torch.device) -> None:
        super().__init__()
        self.names = tuple(names)
        self.sharing = _Coefficients(len(self.names), device)
        self._root = (root,)  # a tuple: the root is no child of its own layer
        self._held: tuple[Tensor, ...] = ()

    @property
    def decision(self) -> nn.Parameter:
        """The parameter that holds the coefficients."""
        return self.sharing.s

    @property
    def trains(self) -> bool:
        """Whether the shared tensors are trained, rather than frozen."""
        return any(getattr(self._root[0], name).requires_grad for name in self.names)

    def coefficients(self) -> Tensor:
        """a, whole on every rank."""
        return gather(self.sharing.s)

    def templates(self) -> list[Tensor]:
        """The shared tensors, whole on every rank."""
        return [gather(getattr(self._root[0], name)) for name in self.names]

    def forward(self, _: Tensor | None = None) -> Tensor:
        if self._held:
            return self._held[0]
        # One product at a time: nothing but the shared tensors is kept for the backward pass, and the sum stays in their
        # dtype under autocast.
        mixed: Tensor | None = None
        for factor, template in zip(self.coefficients().unbind(), self.templates(), strict=True):
            part = template * factor.to(template.dtype)
            mixed = part if mixed is None else mixed + part
        assert mixed is not None
        return mixed

    def hold(self, value: Tensor | None) -> None:
        """Return this value until released (None): for layers that read a weight several times per forward pass."""
        self._held = () if value is None else (value,)


def mixed_weights(module: nn.Module) -> Iterator[tuple[str, MixedWeight]]:
    """The mixed weights of one module, by attribute."""
    if parametrize.is_parametrized(module):
        lists: Any = module.parametrizations
        yield from ((attribute, own[0]) for attribute, own in lists.items() if isinstance(own[0], MixedWeight))


def attach(owners: Sequence[Owner], mixed: MixedWeight, weight: Tensor) -> None:
    """Let every owner of `weight` read the mixture; the weight itself is given up."""
    nothing = torch.empty(0, dtype=weight.dtype, device=weight.device)
    for module, attribute in owners:
        module.__dict__.setdefault(_ORDER, list(module._parameters))
        del module._parameters[attribute]
        module._buffers[attribute] = nothing
        parametrize.register_parametrization(module, attribute, mixed, unsafe=True)
        if isinstance(module, nn.RNNBase) and _HOOKS not in module.__dict__:
            before = module.register_forward_pre_hook(_hold_weights)
            after = module.register_forward_hook(_release_weights, always_call=True)
            module.__dict__[_HOOKS] = (before, after)
            type(module)._apply = move_recurrent  # type: ignore[method-assign]  # parametrize made this class for this module
            forget_flat_weights(module)


def detach(owners: Sequence[Owner], parameter: nn.Parameter) -> None:
    """Let every owner have this parameter in place of a mixture; parameters keep their first order."""
    for module, attribute in owners:
        if isinstance(module, nn.RNNBase):
            for handle in module.__dict__.pop(_HOOKS, ()):
                handle.remove()
        # A deep copy shares the class that parametrize made, and the property that is about to be removed from it.
        shared = type(module)
        module.__class__ = type(shared.__name__, shared.__bases__, dict(vars(shared)))
        parametrize.remove_parametrizations(module, attribute, leave_parametrized=False)
        module._buffers.pop(attribute, None)
        module._parameters[attribute] = parameter
        if not parametrize.is_parametrized(module):
            order = module.__dict__.pop(_ORDER)
            # A module that is the whole model, such as an LSTM, holds the shared tensors too.
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
    """To another device or dtype, without reading the weights: the shared tensors may still have to move."""
    nn.Module._apply(module, fn, recurse)
    forget_flat_weights(module)
    return module


class _Nothing:
    """Something to hold a dead weak reference to."""


def forget_flat_weights(module: nn.RNNBase) -> None:
    """Let a recurrent layer collect its weights anew."""
    # A dead reference reads as "the weight has changed": the next forward pass collects the weights afresh, and
    # `deepcopy` never meets a tensor that is part of a graph.
    dead = weakref.ref(_Nothing())
    module._flat_weights = []
    module._flat_weight_refs = [dead for _ in module._flat_weights_names]  # type: ignore[misc]
