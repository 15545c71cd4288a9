"""Reading a network that shares: its groups of layers, their coefficients and templates; and giving its layers weights of their own.

`unfold` of a network with a plan is `finalize`. One without was folded before, or loaded: what an exact fold stores, and so
the file of a run that shares, are templates and coefficients if templates are fewer than layers, which is all that
folding further needs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from paretorch.core.attach.sites import Selector, Site, check_patterns, choose, find_sites
from paretorch.core.attach.templates import Mix
from paretorch.core.attach.weights import RelaxedWeight
from paretorch.core.plan import plans_of
from paretorch.edits import EDITS, Share, edits_of
from paretorch.edits.share import MixedWeight, mixed_weights, unshare
from paretorch.errors import ConfigError, DivergenceError
from paretorch.methods.sharing.banks import By, check_by, share_groups
from paretorch.methods.sharing.similarity import absolute_cosine
from paretorch.support.arithmetic import exact
from paretorch.support.sharded import whole

Mixes = Mix | MixedWeight
"""A mixed weight: of a network that a plan trains, or of one that is folded."""


@dataclass(frozen=True, eq=False)
class Bank:
    """Layers (in the order of the model) that are mixed from the same templates.

    rows: their coefficients. templates: as they are mixed. relaxed: whether masks or precisions act on them. root: the
    module that holds them.
    """

    sites: tuple[Site, ...]
    rows: Tensor
    templates: tuple[Tensor, ...]
    relaxed: bool
    root: nn.Module

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of their weights."""
        return tuple(site.name for site in self.sites)

    @property
    def stored(self) -> bool:
        """Whether each layer is one tensor, times a scale, as a fold may leave them: how alike they were is then not known."""
        return bool(((self.rows != 0).sum(1) <= 1).all())

    @property
    def unfolded(self) -> bool:
        """Whether that is a tensor of its own for each layer."""
        return self.stored and len(self.templates) == len(self.sites)

    @property
    def gram(self) -> Tensor:
        """⟨T_i, T_j⟩."""
        flat = exact(torch.stack([template.flatten() for template in self.templates]))
        return flat @ flat.T


@dataclass(frozen=True, eq=False)
class Similarity:
    """S, the absolute cosine of each pair of layers of one shape; entries from 0 to 1."""

    layers: tuple[str, ...]
    matrix: Tensor


def read_banks(model: nn.Module) -> list[Bank]:
    """Every group of layers that share; none for a plain network."""
    owners: dict[Mixes, list[tuple[nn.Module, str, str]]] = {}
    for name, module in model.named_modules():
        found: list[tuple[str, Mixes]] = [*_mixes(module), *mixed_weights(module)]
        for attribute, mix in found:
            owners.setdefault(mix, []).append((module, attribute, name))
    groups: dict[tuple[nn.Module, str], list[tuple[Site, Mixes]]] = {}  # by network and bank
    for mix, own in owners.items():
        _, attribute, name = own[0]
        site = Site(f"{name}.{attribute}" if name else attribute, mix.decision, tuple(own))
        groups.setdefault((mix._root[0], mix.names[0].rpartition("_")[0]), []).append((site, mix))
    return [_bank(members) for members in groups.values()]


def _mixes(module: nn.Module) -> list[tuple[str, Mix]]:
    """The weights of a module that a plan mixes, by attribute."""
    if not parametrize.is_parametrized(module):
        return []
    lists = module.parametrizations
    assert isinstance(lists, nn.ModuleDict)
    found = [(attribute, one[0]._modules.get(Mix.kind)) for attribute, one in lists.items()]  # type: ignore[index]
    return [(attribute, mix) for attribute, mix in found if isinstance(mix, Mix)]


def _bank(members: Sequence[tuple[Site, Mixes]]) -> Bank:
    templates: dict[str, Tensor] = {}
    for _, mix in members:
        mode = mix.training
        mix.eval()  # no noise
        with torch.no_grad():
            templates |= {n: whole(t) for n, t in zip(mix.names, mix.templates(), strict=True) if n not in templates}
        mix.train(mode)
    names = sorted(templates, key=lambda name: int(name.rpartition("_")[2]))
    rows = torch.zeros(len(members), len(names), dtype=torch.float32, device=templates[names[0]].device)
    for row, (_, mix) in zip(rows, members, strict=True):
        row[[names.index(name) for name in mix.names]] = whole(mix.coefficients())
    relaxed = any(isinstance(mix, Mix) and mix.has_chains for _, mix in members)
    stored = tuple(templates[name] for name in names)
    return Bank(tuple(site for site, _ in members), rows, stored, relaxed, members[0][1]._root[0])


def layer_similarity(
    model: nn.Module, include: Selector | None = None, exclude: Selector = (), by: By | None = None
) -> list[Similarity]:
    """The layer similarity matrix (chapter 3) of each group of layers.

    Of a network that shares, from the coefficients: its groups are known, and the options choose nothing. Of any other,
    from the weights themselves: groups are layers of one kind and shape, chosen as for `SoftSharing`.

    Example:
        >>> import torch, paretorch as pt
        >>> network = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
        >>> _ = network[1].weight.data.copy_(-2.0 * network[0].weight.data)
        >>> (found,) = pt.layer_similarity(network)
        >>> found.layers, [round(one, 3) for one in found.matrix[0].tolist()]
        (('0.weight', '1.weight'), [1.0, 1.0])
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"layer_similarity takes a network, not {type(model).__name__}")
    check_by(by)
    if banks := read_banks(model):
        return [Similarity(bank.layers, absolute_cosine(bank.rows).cpu()) for bank in banks]
    if computed := next((one for one in model.modules() if isinstance(one, RelaxedWeight)), None):
        raise ConfigError(f"{computed.name} is computed by a plan: give plain weights, as plan.finalize() returns")
    check_patterns(find_sites(model, dims=0), include=include, exclude=exclude)
    groups = share_groups(choose(find_sites(model), include, exclude), by)
    if not groups:
        raise ConfigError(f"layer_similarity finds no two layers of one kind and one weight shape{_computed(model)}")
    found = []
    for group in groups:
        rows = torch.stack([whole(site.weight).flatten().float() for site in group])
        found.append(Similarity(tuple(site.name for site in group), absolute_cosine(rows).cpu()))
    return found


def _computed(model: nn.Module) -> str:
    """Why there may be none: weights that are not stored, but computed when they are read."""
    for name, module in model.named_modules():
        if parametrize.is_parametrized(module):
            weight = f"{name}.{next(iter(module.parametrizations))}".lstrip(".")
            return f": {weight} is computed (by a plan, a weight norm), so give plain weights, as plan.finalize() does"
    return ""


_FEW = 0.25  # of the weights: as many values or fewer are a grid
_ZEROS = 0.01
_SEEN = 2**17  # weights of a template, about: to sort millions takes seconds


def unfold(network: nn.Module) -> tuple[nn.Module, list[Bank]]:
    """The network, changed in place, and what its layers are mixed from."""
    plan = next(plans_of(network), None)
    if plan is not None:
        plan.harden()
    banks = read_banks(network)
    _check_finite(banks)
    return (plan.finalize(), banks) if plan is not None else (network, _unfold(network, banks))


def _check_finite(banks: Sequence[Bank]) -> None:
    for bank in banks:
        for layer, row in zip(bank.layers, bank.rows @ bank.gram.to(bank.rows), strict=True):
            if not bool(torch.isfinite(row).all()):
                raise DivergenceError(f"{layer} is not finite, so training has diverged: fold an earlier checkpoint")


def _unfold(network: nn.Module, banks: Sequence[Bank]) -> list[Bank]:
    """Give every layer its own weight; the banks, with what their templates look like in place of what acts on them."""
    kept = [replace(bank, relaxed=any(_is_coded(template) for template in bank.templates)) for bank in banks]
    unshare(network)
    network.__dict__[EDITS] = [edit for edit in edits_of(network) if not isinstance(edit, Share)]
    network.__dict__.pop("paretorch_folding", None)
    return kept


def _is_coded(template: Tensor) -> bool:
    """Whether a template is pruned or quantized, so that its file is small, and that of a mixture would not be."""
    some = template.flatten()[:: max(1, template.numel() // _SEEN)]
    if float((some == 0).float().mean()) > _ZEROS:
        return True
    finest = 2 / torch.finfo(some.dtype).eps  # values of a grid with as many bits as the dtype has digits
    return len(some.unique()) <= min(_FEW * some.numel(), finest)
