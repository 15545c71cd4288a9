"""Weights that are mixed from templates: W_l = Σ_i a_l,i T_i (chapter 3), every template once in the model.

Templates are parameters of the root module, which FSDP2 keeps whole through the forward pass, so that every layer may
read them; a bank registered in each layer would be sharded twice. Methods that act on what is stored (masks, precisions)
act on the templates, before they are mixed. A mixed layer has no weight of its own: the `original` of its
parametrization is an empty buffer, and its coefficients are the decision of its relaxation.

Mixed weights are computed in every forward pass, by `torch.nn.utils.parametrize`. All owners of a tied weight get the same
chain, so a tied weight stays tied. Recurrent layers read each weight several times per forward pass and cache it: their weights
are computed once per forward pass and the cache is emptied afterwards, so that `deepcopy` never meets a tensor that is part of a graph.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from paretorch.core.attach.sites import Site, Template
from paretorch.core.attach.weights import RelaxedWeight, relaxed_weights
from paretorch.core.groups import Broadcast
from paretorch.core.relaxation import Chain, Relaxation
from paretorch.edits.share import Mixed, forget_flat_weights, move_recurrent


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


Shares = Callable[[Tensor, bool], Tensor]  # decisions, whether they are rounded -> coefficients


def as_they_are(decision: Tensor, hard: bool) -> Tensor:
    """Any coefficients: the decisions themselves."""
    return decision


@dataclass(frozen=True, eq=False)
class Mixture:
    """Weights of one shape and the templates they are mixed from; `start`: decisions at first, one row per layer."""

    layers: tuple[Site, ...]
    templates: tuple[Template, ...]
    start: Tensor
    shares: Shares = as_they_are


class Mix(Mixed, Relaxation):
    """W = Σ_i a_i T_i, where a = shares(s) and T_i is a parameter of the root, read through its own chain if it has one."""

    kind: ClassVar[str] = "sharing"

    def __init__(self, names: Sequence[str], start: Tensor, shares: Shares = as_they_are) -> None:
        super().__init__(Broadcast(start.shape, tuple(start.shape)), 0.0, start.device)
        assert self.s is not None
        self.s.data.copy_(start)
        self.names, self.shares = tuple(names), shares
        self.has_chains = False
        """Whether masks or precisions act on the templates."""

    def hold_templates(self, weights: Sequence[RelaxedWeight | None], path: str, keep: bool) -> None:
        """Relaxations of the templates; one layer of a group keeps them as children, so that they move with the model."""
        self.has_chains = any(weight is not None for weight in weights)
        for i, weight in enumerate(weights):
            if keep and weight is not None:
                self.add_module(f"template_{i}", weight)
                weight.path = f"{path}.template_{i}"

    def coefficients(self) -> Tensor:
        """One a template, on every rank."""
        return self.shares(self.grid(), self.hard)

    def forward(self, _: Tensor) -> Tensor:
        return self.mixed(self.coefficients())


def attach_mixed(site: Site, chain: Chain) -> None:
    """Let every owner of the weight compute chain(nothing); the weight itself is given up."""
    nothing = torch.empty(0, dtype=site.weight.dtype, device=site.weight.device)
    for module, attribute, _ in site.owners:
        module.__dict__.setdefault("_paretorch_order", list(module._parameters))
        del module._parameters[attribute]
        module._buffers[attribute] = nothing
    attach(site, chain)


def on_templates(
    mixtures: Sequence[Mixture], every: list[Site], chosen: Mapping[str, list[Site]]
) -> tuple[list[Site], dict[str, list[Site]]]:
    """The sites that methods act on once weights are mixed: templates take the place of the layers mixed from them.

    A method that has chosen one layer of a group acts on the templates of the group.
    """
    mixed = {site for one in mixtures for site in one.layers}
    sites = [site for site in every if site not in mixed]
    sites += [template for one in mixtures for template in one.templates]
    moved = {}
    for kind, own in chosen.items():
        moved[kind] = [site for site in own if site not in mixed and kind != Mix.kind]
        for one in mixtures:
            moved[kind] += one.templates if kind != Mix.kind and set(one.layers) & set(own) else ()
    return sites, moved


def install(
    mixture: Mixture,
    weights: Mapping[str, RelaxedWeight],
    root: nn.Module,
    add_shared: Callable[[str, Tensor], None],
) -> Iterator[tuple[Site, Chain]]:
    """Put the templates of a mixture on the root, by `add_shared`, and mixes on its layers; gives each layer with its chain."""
    names = [template.name for template in mixture.templates]
    for template in mixture.templates:
        add_shared(template.name, template.weight)
    for site, start in zip(mixture.layers, mixture.start, strict=True):
        mix = Mix(names, start, mixture.shares)
        mix.bind(root)
        chain = Chain([mix]).train(site.owners[0][0].training)
        attach_mixed(site, chain)
        _, attribute, module = site.owners[0]
        path = f"{module}.parametrizations.{attribute}.0.{Mix.kind}".lstrip(".")
        mix.hold_templates([weights.get(name) for name in names], path, keep=site is mixture.layers[0])
        assert mix.s is not None
        yield replace(site, weight=mix.s), chain  # the weight itself is let go
