"""Soft parameter sharing (chapter 3).

    W_l = Σ_i α_l,i T_i,   price −λ Σ_l,l' S_l,l'(α),   harden: layers that are alike become multiples of one weight

α and T are trained together, α without weight decay. What differs from the chapter:

- α is trained by the plan, as all decisions are: SGD with Nesterov momentum whose rate drops by 5 after 30, 60 and 80 % of
  the steps, the chapter's recipe for CIFAR, whatever optimizer trains the templates; solver="adam", lr=0.01, drops=() is
  that for shortest paths. `optimizer=` replaces it, and then keeps its own rate.
- With fewer templates than layers an orthogonal start is scaled, so that every layer keeps its variance (see `banks`).
- The start keeps the weights that the model has, exactly where templates are as many as layers.
- Averaging layers that are negative multiples of each other would change the function: each has its own signed scale.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self, cast

import torch
from torch import Tensor, nn

from paretorch.core.attach.sites import Site
from paretorch.core.attach.templates import Mix, Mixture
from paretorch.core.groups import Grouping
from paretorch.core.method import Method, Shares, Term
from paretorch.core.relaxation import Relaxation
from paretorch.core.step.noise import seed_for
from paretorch.errors import ConfigError, warn
from paretorch.methods.sharing.banks import DOMAINS, By, bank, check_by, share_groups, template_sites
from paretorch.methods.sharing.similarity import absolute_cosine, cluster, collapse, recurrence, recurrence_slope
from paretorch.support.arithmetic import exact
from paretorch.support.checks import require_count, require_number
from paretorch.support.sharded import on_one_gpu, whole, write

_DROP = 0.2


@dataclass(frozen=True, kw_only=True)
class SoftSharing(Shares, Method):
    """Let layers of equal weight shape share templates, and learn how.

    templates: k, in each group of layers; None: as many as the group has layers (nothing is saved until layers fold).
    by: divides layers of equal shape further: `(name, module) -> label`, where None leaves a layer alone, or a list of
    patterns, types or predicates, each of which is a group.
    domain: of the coefficients: "real", "simplex" or "one-hot" (straight-through). start: "orthogonal", or "fit" to begin
    as near as possible to trained weights. recurrence: λ, the reward of similar layers.
    threshold: the least similarity of layers that become multiples of one weight at `harden`; None: none do.
    solver, lr, momentum, drops: "sgd" or "adam" trains the coefficients, at this rate; after each share of the steps in
    `drops` the rate falls by 5. momentum: of SGD.

    Example:
        >>> import torch, paretorch as pt
        >>> network = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)))
        >>> plan = pt.compress(network, pt.SoftSharing(templates=2), steps=100)
        >>> sum(p.numel() for p in network.parameters() if p.numel() >= 64)  # two templates in place of four weights
        128
    """

    templates: int | None = None
    by: By | None = None
    domain: str = "real"
    start: str = "orthogonal"
    recurrence: float = 0.0
    threshold: float | None = None
    solver: str = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    drops: tuple[float, ...] = (0.3, 0.6, 0.8)

    kind: ClassVar[str] = "sharing"
    unit: ClassVar[str] = "kept"
    order: ClassVar[int] = 0
    scalars: ClassVar[tuple[str, ...]] = ("rate",)
    per_layer: ClassVar[frozenset[str]] = frozenset({"templates"})

    def check(self) -> None:
        super().check()
        if self.group != "weight":
            raise ConfigError(
                "SoftSharing has one coefficient per template and layer: use by= to say which layers share"
            )
        if self.templates is not None:
            require_count("templates", self.templates, 1, "give the number of templates of a group, 1 or more")
        check_by(self.by)
        if self.domain not in tuple(DOMAINS):
            raise ConfigError(f"domain={self.domain!r} is not known: use one of {', '.join(DOMAINS)}")
        if self.start not in ("orthogonal", "fit"):
            raise ConfigError(f'start={self.start!r} is not known: use "orthogonal" or "fit"')
        require_number("recurrence", self.recurrence, 0.0, math.inf, "a reward is 0 or more; the thesis uses 0.01")
        if self.threshold is not None:
            require_number("threshold", self.threshold, 0.0, 1.0, "a similarity is from 0 to 1, such as 0.95")
        if self.domain != "real" and (self.threshold is not None or self.recurrence or self.start == "fit"):
            raise ConfigError(f'threshold, recurrence and start="fit" need domain="real", not {self.domain!r}')
        if self.solver not in ("sgd", "adam"):
            raise ConfigError(f'solver={self.solver!r} is not known: use "sgd" or "adam"')
        require_number("lr", self.lr, 0.0, math.inf, "give a positive rate", above=True)
        require_number("momentum", self.momentum, 0.0, math.nextafter(1.0, 0.0), "give 0 to just below 1")
        hint = "give shares of the steps, from 0 to 1, such as (0.3, 0.6, 0.8)"
        if not isinstance(self.drops, list | tuple):
            raise ConfigError(f"drops={self.drops!r}: {hint}")
        for drop in self.drops:
            require_number("drops", drop, 0.0, 1.0, hint)

    def mix(self, root: nn.Module, sites: Sequence[Site], seed: int) -> list[Mixture]:
        groups = share_groups(sites, self.by)
        if not groups:
            found = ", ".join(f"{site.name} {tuple(site.weight.shape)}" for site in sites[:4])
            hint = "choose others with include=, or use a network with equal layers"
            raise ConfigError(
                "SoftSharing finds no two layers of one kind and one weight shape "
                f"{'' if self.by is None else 'with one label of by= '}among {found}{' …' if len(sites) > 4 else ''}: "
                f"{hint if self.by is None else 'let by= give equal layers one label'}"
            )
        return [self._mixture(root, number, group, seed) for number, group in enumerate(groups)]

    def _mixture(self, root: nn.Module, number: int, group: tuple[Site, ...], seed: int) -> Mixture:
        wanted = {self.for_site(site).templates for site in group}
        if len(wanted) > 1:
            raise ConfigError(
                f"overrides: {group[0].name} and {group[-1].name} share templates, so their number must be one"
            )
        count = wanted.pop() or len(group)
        if count > len(group):
            warn(
                f"{count} templates for {len(group)} layers like {group[0].name}: more numbers than without sharing",
            )
        trained = [site.name for site in group if site.weight.requires_grad]
        if frozen := [site.name for site in group if trained and not site.weight.requires_grad]:
            warn(
                f"{frozen[0]} is frozen, and shares templates with weights that are trained, such as {trained[0]}: "
                "exclude it, or it changes with them",
            )
        weights = [site.weight for site in group]
        values, decisions = bank(weights, count, self.domain, self.start, seed_for(seed, group[0].name))
        templates = template_sites(root, number, group, values)
        return Mixture(group, templates, decisions.to(weights[0].device), DOMAINS[self.domain])

    def relax(self, site: Site, grouping: Grouping, seed: int, together: set[str]) -> Relaxation:
        raise ConfigError(f"{site.name} shares its weight with no other layer")

    def decisions_optimizer(self, parameters: list[nn.Parameter], steps: int) -> torch.optim.Optimizer:
        fused = on_one_gpu(parameters)
        lr = torch.full((), self.lr, dtype=torch.float32, device=parameters[0].device) if fused else self.lr
        if self.solver == "adam":
            return torch.optim.Adam(parameters, lr=lr, fused=fused, foreach=False if not fused else None)
        nesterov = self.momentum > 0
        return torch.optim.SGD(
            parameters,
            lr=lr,
            momentum=self.momentum,
            nesterov=nesterov,
            fused=fused,
            foreach=False if not fused else None,
        )

    def schedule(self, term: Term, step: Tensor) -> None:
        passed = [(step >= drop * term.steps).to(torch.float32) for drop in self.drops]
        exponent = torch.stack(passed).sum() if passed else torch.zeros((), dtype=torch.float32, device=step.device)
        rate = self.lr * torch.exp(exponent * math.log(_DROP))
        term.set_scalar("rate", rate)
        if self.optimizer is None and term.optimizer is not None:
            for group in term.optimizer.param_groups:
                if isinstance(group["lr"], Tensor):
                    group["lr"].copy_(rate)
                else:
                    group["lr"] = float(rate)

    def reward(self, term: Term) -> Tensor | None:
        if not self.recurrence:
            return None
        return -self.recurrence * torch.stack([recurrence(_rows(mixes)) for mixes in banks_of(term)]).sum()

    def reward_slopes(self, term: Term) -> list[Tensor] | None:
        if not self.recurrence:
            return None
        # In the order of the relaxations, in which the layers of a group follow each other.
        return [
            -self.recurrence * slope for mixes in banks_of(term) for slope in recurrence_slope(_rows(mixes)).unbind()
        ]

    def round(self, term: Term, factor: float) -> None:
        if self.threshold is None:
            return
        for mixes in banks_of(term):
            rows = _rows(mixes)
            (labels,) = cluster([absolute_cosine(exact(rows))], self.threshold, None)
            gram = gram_of(mixes[0])
            for label in set(labels):
                members = [i for i, own in enumerate(labels) if own == label]
                if len(members) > 1:
                    direction, scales = collapse(rows[members], gram)
                    for i, scale in zip(members, scales, strict=True):
                        write(mixes[i].decision, (scale * direction).to(rows))

    def with_target(self, share: float) -> Self:
        raise ConfigError(
            "a byte budget does not go with SoftSharing: fold the network, and look at the size of its file"
        )

    def measure(self, term: Term) -> dict[str, Tensor]:
        off = []
        for mixes in banks_of(term):
            similarity = absolute_cosine(torch.stack([whole(mix.coefficients()) for mix in mixes]))
            n = len(mixes)
            off.append((similarity.sum() - similarity.diagonal().sum()) / (n * (n - 1)))
        return {"similarity": torch.stack(off).mean()}


def banks_of(term: Term) -> list[list[Mix]]:
    """The mixed layers of each group."""
    found: dict[tuple[str, ...], list[Mix]] = {}
    for relaxation in term.relaxations:
        mix = cast(Mix, relaxation)
        found.setdefault(mix.names, []).append(mix)
    return list(found.values())


def gram_of(mix: Mix) -> Tensor:
    """⟨T_i, T_j⟩ of the templates behind a layer, as they are mixed."""
    with torch.no_grad():
        flat = exact(torch.stack([template.detach().flatten() for template in mix.templates()]))
    return flat @ flat.T


def _rows(mixes: list[Mix]) -> Tensor:
    return torch.stack([whole(mix.decision) for mix in mixes])
