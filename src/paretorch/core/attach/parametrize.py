"""Weights that are computed in every forward pass, from templates: by `torch.nn.utils.parametrize`.

All owners of a tied weight get the same chain, so a tied weight stays tied.
Recurrent layers read each weight several times a forward and cache it: their weights are computed once per forward
and the cache is emptied afterwards, so that `deepcopy` never meets a tensor that is part of a graph.
"""

from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

from paretorch.core.attach.sites import Site
from paretorch.core.attach.weights import relaxed_weights
from paretorch.core.relaxation import Chain
from paretorch.edits.share import forget_flat_weights, move_recurrent


def attach(site: Site, chain: Chain) -> None:
    """Make every owner of the weight compute chain(weight)."""
    for module, attribute, _ in site.owners:
        order = list(module._parameters)
        parametrize.register_parametrization(module, attribute, chain, unsafe=True)
        module.__dict__.setdefault("_paretorch_order", order)
        if isinstance(module, nn.RNNBase) and "_paretorch_hooks" not in module.__dict__:
            before = module.register_forward_pre_hook(_hold_weights)
            after = module.register_forward_hook(_release_weights, always_call=True)
            module.__dict__["_paretorch_hooks"] = (before, after)
            type(module)._apply = move_recurrent  # type: ignore[method-assign]  # the class that parametrize made, this module's own
            forget_flat_weights(module)


def originals(site: Site) -> list[Tensor]:
    """What stands for the weight in each of its owners: one object, unless the model was moved."""
    return [module.parametrizations[attribute].original for module, attribute, _ in site.owners]  # type: ignore[index,union-attr]


def detach(site: Site, value: Tensor, trained: bool = True) -> None:
    """Remove the chain from every owner; the weight is a new Parameter, keys keep their order."""
    parameter = nn.Parameter(value.clone(), trained)
    for module, attribute, _ in site.owners:
        if isinstance(module, nn.RNNBase):
            for handle in module.__dict__.pop("_paretorch_hooks", ()):
                handle.remove()
        _own_class(module)
        parametrize.remove_parametrizations(module, attribute, leave_parametrized=False)
        module._buffers.pop(attribute, None)
        module._parameters[attribute] = parameter
        if not parametrize.is_parametrized(module):
            order = module.__dict__.pop("_paretorch_order")
            # A module that is the whole model, such as an LSTM, holds the templates too.
            module._parameters = {**{name: module._parameters[name] for name in order}, **module._parameters}
            if isinstance(module, nn.RNNBase):
                module._init_flat_weights()


def _own_class(module: nn.Module) -> None:
    # A deep copy shares the class that parametrize made, and the property that is about to be removed from it.
    shared = type(module)
    module.__class__ = type(shared.__name__, shared.__bases__, dict(vars(shared)))


def chains_of(module: nn.Module) -> list[tuple[Chain, Tensor]]:
    """The chains on a module's own weights, each with the values that it starts from."""
    found: list[tuple[Chain, Tensor]] = [(weight, weight.latent) for weight in relaxed_weights(module)]
    return found + _parametrized(module)


def _parametrized(module: nn.Module) -> list[tuple[Chain, Tensor]]:
    if not parametrize.is_parametrized(module):
        return []
    lists: Any = module.parametrizations
    return [(one[0], one.original) for one in lists.values() if isinstance(one[0], Chain)]


def _hold_weights(module: nn.Module, _: Any) -> None:
    for chain, weight in _parametrized(module):
        chain.hold(chain(weight))


def _release_weights(module: nn.Module, *_: Any) -> None:
    for chain, _weight in _parametrized(module):
        chain.hold(None)
    forget_flat_weights(module)  # type: ignore[arg-type]
