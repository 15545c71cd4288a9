"""From weights to groups of layers and their templates: which layers share, where coefficients may lie, and what both are at first.

The domains of coefficients (chapter 3, relaxed search space):

    real      any a ∈ ℝᵏ: the decisions themselves
    simplex   a = softmax(s): weighted means of the templates
    one-hot   a = e_j, j = argmax s, in the forward pass; the gradient is that of softmax(s) (straight-through)
"""

import math
import re
from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor, nn

from paretorch.core.attach.sites import Selector, Site, Template
from paretorch.core.attach.templates import Shares, as_they_are
from paretorch.core.relaxation import PREFIX
from paretorch.errors import ConfigError

_FIRST_SHARE = 0.9  # of the template that a layer begins with, on the simplex


def on_simplex(decision: Tensor, hard: bool) -> Tensor:
    """Weighted means."""
    return torch.softmax(decision, -1)


def one_hot(decision: Tensor, hard: bool) -> Tensor:
    """One template per layer; the decision stays in the graph once rounded, with a zero gradient: DDP waits for it."""
    soft = torch.softmax(decision, -1)
    chosen = torch.zeros_like(soft).scatter(-1, decision.argmax(-1, keepdim=True), 1.0)
    return chosen + 0.0 * soft if hard else chosen + (soft - soft.detach())


DOMAINS: dict[str, Shares] = {"real": as_they_are, "simplex": on_simplex, "one-hot": one_hot}


def orthogonal(layers: int, templates: int, seed: int) -> Tensor:
    """A random layers × templates matrix Q with orthonormal columns (rows, where templates are more than layers)."""
    generator = torch.Generator().manual_seed(seed)
    tall = max(layers, templates)
    q, r = torch.linalg.qr(torch.randn(tall, min(layers, templates), generator=generator, dtype=torch.float64))
    q = q * torch.where(torch.diagonal(r) < 0, -1.0, 1.0)
    matrix: Tensor = q if layers >= templates else q.T.contiguous()
    return matrix


def in_turn(layers: int, templates: int) -> Tensor:
    """Logits by which layer l begins with template l mod k."""
    logits = torch.zeros(layers, templates, dtype=torch.float64)
    first = math.log(_FIRST_SHARE / (1 - _FIRST_SHARE) * max(templates - 1, 1))
    logits[torch.arange(layers), torch.arange(layers) % templates] = first
    return logits


By = Callable[[str, nn.Module], Hashable | None] | Sequence[Selector]
_LAYER_OF_STACK = re.compile(r"_l\d+(_reverse)?$")  # of the weights of recurrent layers


def check_by(by: By | None) -> None:
    """A function (no type: that is a selector), or a list of selectors that is not empty."""
    function = callable(by) and not isinstance(by, type)
    if by is not None and not function and (not by or not isinstance(by, list | tuple)):
        raise ConfigError(
            f'by={by!r}: give a function (name, module) -> label, or patterns such as ("stages.0.*", "stages.1.*")'
        )


def share_groups(sites: Sequence[Site], by: By | None = None) -> list[tuple[Site, ...]]:
    """Layers of one kind and one weight shape, two at least, in the order of the model.

    by divides them further: layers with equal labels share, a layer labelled None keeps its weight. It is a function of
    name and module, or a list of selectors (patterns, types, predicates): the first that matches is the label.
    """
    if by is not None and not callable(by):
        for selector in by:
            if not any(site.matches(selector) for site in sites):
                raise ConfigError(
                    f"by: {selector!r} matches none of the layers that may share, such as {sites[0].name}: check its spelling, or leave it out"
                )
    groups: dict[tuple[Hashable, ...], list[Site]] = {}
    for site in sites:
        label = "all" if by is None else _label(site, by)
        if label is None:
            continue
        module, attribute, _ = site.owners[0]
        role = _LAYER_OF_STACK.sub("", attribute)
        weight = site.weight
        kind = (type(module).__qualname__, role, str(weight.dtype), str(weight.device))
        key: tuple[Hashable, ...] = (label, kind, tuple(weight.shape))
        groups.setdefault(key, []).append(site)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def _label(site: Site, by: By) -> Hashable | None:
    if not callable(by):
        return next((number for number, selector in enumerate(by) if site.matches(selector)), None)
    module, _, name = site.owners[0]
    label = by(name, module)
    if not isinstance(label, Hashable):
        raise ConfigError(f"by: the label of {name} must be a number, a string or a tuple, not {label!r}")
    return label


def bank(weights: Sequence[Tensor], templates: int, domain: str, start: str, seed: int) -> tuple[list[Tensor], Tensor]:
    """Templates T and decisions at the start, in fp32, such that each W_l has the variance of the weight it replaces.

    real: Q has orthonormal columns (of rows, if k > L), T = Qᵀ W, and the rows of α are those of Q scaled to norm 1. With
    k ≥ L the weights come back exactly. With k < L independent weights of variance v give templates of variance v, and
    W_l = Σ α_i T_i has ‖α_l‖² v = v: unscaled rows of Q would give k/L of it.
    "fit" takes for Q the leading singular vectors of the weights, unscaled: the nearest mixtures to trained weights.
    simplex and one-hot: layer l begins with template l mod k, T_i is the weight of layer i, divided by the norm of the
    coefficients.
    """
    layers = len(weights)
    flat = torch.stack([weight.detach().flatten() for weight in weights]).to(torch.float32)
    if domain != "real":
        decisions = in_turn(layers, templates)
        shares = DOMAINS[domain](decisions, True)
        flat = flat[torch.arange(templates) % layers] / shares[0].norm().to(flat)
        return [row.view(weights[0].shape).clone() for row in flat], decisions.float()
    if start == "fit":
        q = _leading(flat, templates, seed)
        alpha = q
    else:
        q = orthogonal(layers, templates, seed)
        alpha = q / q.norm(dim=1, keepdim=True).clamp_min(1e-12)
    mixed = q.T.to(flat) @ flat
    return [row.view(weights[0].shape).clone() for row in mixed], alpha.float()


def _leading(flat: Tensor, templates: int, seed: int) -> Tensor:
    """The leading left singular vectors of the weights, from their small Gram matrix; rows of norm 1 if k > L."""
    layers = len(flat)
    if templates > layers:
        return orthogonal(layers, templates, seed)
    gram = (flat @ flat.T).to("cpu", torch.float64)
    leading: Tensor = torch.linalg.eigh(gram).eigenvectors.flip(1)[:, :templates].contiguous()
    return leading


def template_sites(
    root: nn.Module, number: int, group: Sequence[Site], values: Sequence[Tensor]
) -> tuple[Template, ...]:
    """Sites for a group's templates, in the dtype of its weights, frozen if all of these are; nothing is registered yet."""
    weight = group[0].weight
    owners = tuple(owner for site in group for owner in site.owners)
    trained = any(site.weight.requires_grad for site in group)
    # Dense in memory as the weights are (channels_last, say).
    made = [nn.Parameter(torch.empty_like(weight).copy_(value).detach(), trained) for value in values]
    return tuple(
        Template(f"{PREFIX}template_{number}_{i}", parameter, owners, root) for i, parameter in enumerate(made)
    )
