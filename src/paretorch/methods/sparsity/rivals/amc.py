"""AMC (He et al., "AMC: AutoML for Model Compression and Acceleration on Mobile Devices", 2018), weight by weight as in
the thesis (section 4.4.1).

An agent walks through the layers of a trained network and picks how much of each to drop; then, in one shot, the
smallest weights of each layer go:    m_t = 1{|w| ≥ τ_t},   τ_t the quantile of |w| in layer t at its share a_t

Its reward is −error on held-out data, without fine-tuning; the budget is kept by bounding its actions (`amc_layers`).
The best shares of all episodes are taken. Training is dense until `harden_searched`, which searches and prunes; plain
`harden` drops the same share of every layer.

What differs: where the agent drops more than the target, all layers get some back in proportion to what they keep, so
that the target is met exactly; `reduced` and `rest` of a state count weights, the resource of the budget, not FLOPs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from paretorch.core.attach.sites import Site
from paretorch.core.attach.templates import chains_of
from paretorch.core.groups import Grouping
from paretorch.core.method import Term
from paretorch.core.plan import Plan
from paretorch.core.relaxation import Relaxation
from paretorch.core.rounding import keep_best
from paretorch.errors import ConfigError
from paretorch.methods.sparsity.rivals.amc_agent import FEATURES, Agent, Walk, layers_of, noise
from paretorch.methods.sparsity.rivals.rival import Rival
from paretorch.support.checks import require_count, require_number
from paretorch.support.sharded import whole, write


@dataclass(frozen=True, kw_only=True)
class AMC(Rival):
    """Search how much of each layer to drop, by reinforcement learning; drop the smallest weights.

    target: share of the selected weights to drop. most: a_max, the largest share of one layer; None: the one that keeps
    a fifth of the average density. episodes: networks tried. warmup: episodes of pure exploration before the agent learns.
    """

    most: float | None = None
    episodes: int = 400
    warmup: int = 100

    def check(self) -> None:
        super().check()
        require_count("episodes", self.episodes, 1, "give the number of networks to try, 1 or more")
        require_count("warmup", self.warmup, 0, "give the episodes before the agent learns, 0 or more")
        if self.most is not None and self.target is not None:
            hint = (
                "no layer may lose all, and together they must reach the target: give a share from "
                f"{self.target:g} to just below 1"
            )
            require_number("most", self.most, self.target, math.nextafter(1.0, 0.0), hint)

    def bound(self) -> float:
        """a_max."""
        return 1.0 - (1.0 - self.require_target()) / 5 if self.most is None else self.most

    def relax(self, site: Site, grouping: Grouping, seed: int, together: set[str]) -> "_Allotted":
        return _Allotted(grouping, self.require_target(), site.weight.device)

    def round(self, term: Term, factor: float) -> None:
        members = [r for r in term.relaxations if isinstance(r, _Allotted)]
        goal = min((1.0 - self.require_target()) * factor, 1.0) * term.weights
        sizes = [site.weight.numel() for site in term.sites]
        counts = kept_counts([float(r.share) for r in members], sizes, round(goal))
        for r, latent, count in zip(members, term.latents(), counts, strict=True):
            size = torch.as_tensor(r.grouping.sizes, device=r.decision.device).expand(r.grouping.grid)
            score = r.grouping.reduce(whole(latent).float().abs()) / size
            (kept,) = keep_best([score], [size], count)
            write(r.decision, torch.where(kept, 1.0, -1.0))


class _Allotted(Relaxation):
    """W = w while searching; w ⊙ 1{s ≥ 0} once hard."""

    kind: ClassVar[str] = "sparsity"
    share: Tensor  # of this layer, to be dropped

    def __init__(self, grouping: Grouping, share: float, device: torch.device) -> None:
        super().__init__(grouping, 0.0, device)
        self.decision.requires_grad_(False)
        self.register_buffer("share", torch.full((), share, dtype=torch.float32, device=device))

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.survives(self.grid()).to(weight.dtype) if self.hard else weight

    def keep(self, s: Tensor) -> Tensor | None:
        return self.survives(s) if self.hard else None

    def threshold(self) -> Tensor:
        return self.decision.new_zeros(())

    def survives(self, s: Tensor) -> Tensor:
        return self.grouping.expand((s >= 0).to(s.dtype))


def harden_searched(
    plan: Plan,
    evaluate: Callable[[nn.Module], float],
    example: Tensor,
    seed: int = 0,
    optimizer: torch.optim.Optimizer | None = None,
) -> float:
    """Search the shares of the layers, harden with the best; its accuracy.

    evaluate: the accuracy (0 to 1) of a model on data that is not the test set. example: an input, to see the layers.
    """
    method = next((one for one in plan.methods() if isinstance(one, AMC)), None)
    if method is None:
        raise ConfigError("this plan has nothing to search: use harden_searched with AMC")
    plan.require_finite()
    layers = layers_of(plan.model, example.float() if example.is_floating_point() else example)
    walk, agent = Walk(list(layers.values())), Agent(FEATURES, seed)
    best, found = -math.inf, list[float]()
    for episode in range(method.episodes):
        states, shares = episode_of(walk, agent, noise(episode, method.warmup), method.require_target(), method.bound())
        _allot(list(layers), shares)
        with plan.hardened() as model, torch.no_grad():
            accuracy = float(evaluate(model))
        if not math.isfinite(accuracy):
            raise ConfigError(f"evaluate gave {accuracy}: return the accuracy, from 0 to 1")
        agent.remember(states, shares, reward_of(accuracy))
        if episode >= method.warmup:
            for _ in shares:
                agent.learn()
        if accuracy > best:
            best, found = accuracy, shares
    _allot(list(layers), found)
    plan.harden(optimizer)
    return best


def reward_of(accuracy: float) -> float:
    """−error: the budget is kept by the bounds of the actions, so the reward need not speak of it."""
    return accuracy - 1.0


def episode_of(walk: Walk, agent: Agent, sigma: float, target: float, most: float) -> tuple[list[Tensor], list[float]]:
    """One walk through the layers: the states seen, and the share of each layer to drop."""
    states, shares = list[Tensor](), list[float]()
    reduced, last = 0.0, 0.0
    for t, weights in enumerate(walk.weights):
        states.append(walk.state(t, reduced, last))
        last = walk.bounded(t, agent.act(states[-1], sigma), reduced, target, most)
        shares.append(last)
        reduced += last * weights
    return states, shares


def kept_counts(shares: Sequence[float], sizes: Sequence[int], kept: int) -> list[int]:
    """How many weights each layer keeps: in proportion to (1 − share) · size, `kept` in all, no layer more than it has."""
    wishes = [(1.0 - share) * size for share, size in zip(shares, sizes, strict=True)]
    low, high = 0.0, max(size / wish for size, wish in zip(sizes, wishes, strict=True))
    for _ in range(64):
        middle = (low + high) / 2
        enough = sum(min(size, middle * wish) for size, wish in zip(sizes, wishes, strict=True)) >= kept
        low, high = (low, middle) if enough else (middle, high)
    exact = [min(size, high * wish) for size, wish in zip(sizes, wishes, strict=True)]
    counts = [int(value) for value in exact]
    by_rest = sorted(range(len(exact)), key=lambda i: counts[i] - exact[i])
    for i in by_rest[: max(kept - sum(counts), 0)]:
        counts[i] += 1
    return counts


def _allot(modules: Sequence[nn.Module], shares: Sequence[float]) -> None:
    for module, share in zip(modules, shares, strict=True):
        for chain, _ in chains_of(module):
            for r in chain.relaxations():
                if isinstance(r, _Allotted):
                    r.share.fill_(share)
