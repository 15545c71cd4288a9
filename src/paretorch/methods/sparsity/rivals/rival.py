"""What the pruning rivals have in common: masks chosen by scores, exactly on target; a λ that leads to the target; drawn masks.

`ScoredRival` is for rivals whose masks follow from scores of the weights:

    s = |w|/σ − τ,   m = 1{s ≥ 0},   τ the quantile of |w|/σ at the sparsity of this step

σ is 1 (or a layer's scale). The decision s is not trained: it is written after each step, so that the plan reads masks, prices and
targets off it as it does for learned masks. τ comes from all scores, of networks above a million from a fixed sample of each layer,
without waiting for the device; at `harden` the target is met exactly. A group's score is its average.

`SteeredRival` is for rivals whose λ decides the sparsity:

    goal(t) from 1 to the share that the target leaves, cubic, reached after 75 % of the steps
    λ(t) = v / (rate · rms slope),   v = v_max · clip(e / 0.1, 0, 1),   e the share kept above the goal

That is, the price alone moves a decision by v at each step: by v_max, 10 in a fifth of the steps, if too much is kept by 0.1 or
more, and not at all if too little is. The thesis tunes λ for each sparsity by hand. A fixed λ, with the rest cut at `harden`,
would hold a method to sparsities that it was not trained for.

`harden_best` draws several masks and keeps the best. The thesis (section 4.4.1) finds this to be what makes stochastic methods
work at high sparsity. A draw is a pure function of the plan's seed and the draw's number, so only the number has to be kept.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from paretorch.core.groups import Grouping
from paretorch.core.method import Term
from paretorch.core.plan import Plan
from paretorch.core.relaxation import Relaxation
from paretorch.core.rounding import keep_best
from paretorch.core.step.noise import uniform
from paretorch.core.step.optimizers import sgd
from paretorch.core.step.sample import WHOLE
from paretorch.core.step.schedules import cubic, progress
from paretorch.errors import ConfigError
from paretorch.methods.sparsity.pruning import Pruning, quantile
from paretorch.support.checks import require_count, require_number
from paretorch.support.sharded import whole, write


@dataclass(frozen=True, kw_only=True)
class Rival(Pruning):
    """A method that CS is compared with."""

    def check(self) -> None:
        super().check()
        if self.group == "network":
            raise ConfigError(f'{type(self).__name__} decides within a layer: use group="weight", "channel" or a block')

    def require_target(self) -> float:
        """The target of a method that cannot do without one."""
        if self.target is None:
            raise ConfigError(f"{type(self).__name__} needs a target: give the share of weights to drop, such as 0.9")
        return self.target

    def check_training(self, lr: float, momentum: float, penalty: float = 0.0) -> None:
        """Of decisions by SGD, under a price."""
        require_number("lr", lr, 0.0, math.inf, "give a positive rate", above=True)
        require_number("momentum", momentum, 0.0, 1.0, "give 0 to 1")
        require_number("penalty", penalty, 0.0, math.inf, "a price is 0 or more")

    def refuse_precision(self, together: set[str]) -> None:
        """For methods that change the values of kept weights."""
        if "precision" in together:
            raise ConfigError(
                f"{type(self).__name__} rescales the weights it keeps, which takes them off a grid of precisions: "
                "use it alone, or a method that only masks, such as GradualMagnitude"
            )

    def schedule(self, term: Term, step: Tensor) -> None:
        """Most rivals have no schedule."""

    def measure(self, term: Term) -> dict[str, Tensor]:
        return {"sparsity": sparsity(term)}

    def choose(self, scores: Sequence[Tensor], sizes: Sequence[Tensor], factor: float) -> list[Tensor]:
        """Which groups to keep: the best, `factor` times as many as the target says; without one, scores above zero."""
        own = [score > 0 for score in scores]
        if self.target is None and factor == 1.0:
            return own
        total = float(sum(size.sum() for size in sizes))
        kept = float(sum((size * one).sum() for size, one in zip(sizes, own, strict=True)))
        goal = kept if self.target is None else (1.0 - self.target) * total
        return keep_best(scores, sizes, min(goal * factor, total))


def sparsity(term: Term) -> Tensor:
    """The share of weights that would be dropped if rounded now."""
    kept = []
    for relaxation in term.relaxations:
        one = relaxation.survives(relaxation.grid(whole(relaxation.decision)))
        assert one is not None
        kept.append(one.expand(relaxation.grouping.shape).sum())
    return 1.0 - torch.stack(kept).sum() / term.weights


def boundary(scores: Sequence[Tensor], keep: Sequence[Tensor]) -> Tensor:
    """Midway between the best dropped and the worst kept score; outside of all scores where there is but one kind."""
    flat = torch.cat([score.flatten() for score in scores])
    kept = torch.cat([one.flatten() for one in keep])
    if bool(kept.all()):
        return flat.min() - 1.0
    if not bool(kept.any()):
        return flat.max() + 1.0
    return (flat[~kept].max() + flat[kept].min()) / 2


_ANNEAL = 0.75  # of the steps
_BAND = 0.1  # of the weights: from this error on, decisions move at full speed
_SPAN, _PART = 10.0, 0.2  # full speed: so many units of s in this part of the steps
_STILL = 0.02  # the least rms slope: gates that are all decided do not make the price explode


@dataclass(frozen=True, kw_only=True)
class SteeredRival(Rival):
    """steered: with a target, λ is moved so that the search itself gets there; otherwise it is constant.

    lr, momentum: of the SGD that trains the decisions.
    """

    steered: bool = False
    lr: float = 0.1
    momentum: float = 0.9

    scalars: ClassVar[tuple[str, ...]] = ("price",)

    def check(self) -> None:
        super().check()
        if self.steered and self.target is None:
            raise ConfigError("steered=True needs a target: give the share of weights to drop, such as 0.9")

    @abstractmethod
    def kept(self, term: Term) -> Tensor:
        """The share of weights that is kept now, or is to be expected."""

    def decisions_optimizer(self, parameters: list[nn.Parameter], steps: int) -> torch.optim.Optimizer:
        return sgd(parameters, self.lr, self.momentum)

    def price(self, term: Term) -> Tensor | None:
        return term.scalar("price") if self.steered else self.constant_price(term)

    def constant_price(self, term: Term) -> Tensor | None:
        """λ without a target; None: nothing costs anything."""
        return None

    def speed(self) -> float:
        """By how much a gradient of 1 moves a decision in one step, with momentum."""
        return self.lr / max(1.0 - self.momentum, 1e-3)

    def push(self, relaxation: Relaxation, s: Tensor) -> Tensor:
        """The gradient that a price of 1 gives each decision, per weight of its group."""
        return relaxation.price_slope(s)

    @property
    def is_steered(self) -> bool:
        return self.steered

    def steer(self, term: Term, step: Tensor) -> None:
        if not self.steered:
            return
        assert self.target is not None
        goal = cubic(progress(step, _ANNEAL * term.steps), 1.0, 1.0 - self.target)
        move = _SPAN / (_PART * term.steps) * ((self.kept(term) - goal) / _BAND).clamp(0.0, 1.0)
        slope = term.mean(lambda r, s: self.push(r, s).square()).sqrt().clamp_min(_STILL)
        term.set_scalar("price", move / (self.speed() * slope))

    def measure(self, term: Term) -> dict[str, Tensor]:
        found = super().measure(term)
        return {**found, "price": term.scalar("price")} if self.steered else found


class Drawn(Relaxation):
    """A relaxation with noise while searching, and a numbered draw when it is rounded."""

    differs_in_eval: ClassVar[bool] = True
    draw: Tensor

    def __init__(self, grouping: Grouping, start: float, device: torch.device, seed: int, draw: int) -> None:
        super().__init__(grouping, start, device)
        self.seed = seed
        self.register_buffer("draw", torch.full((), draw, dtype=torch.int64, device=device))

    def logistic(self, step: Tensor) -> Tensor:
        """log u − log(1 − u), u ~ U(0, 1), on the grid of decisions."""
        u = (uniform(torch.Size(self.grouping.grid), step, self.seed) + 1.0) / 2.0
        return torch.logit(u, eps=1e-6)

    def drawn_logistic(self) -> Tensor:
        """The noise of this draw; training steps are numbered upwards from 0, draws downwards from −1."""
        return self.logistic(-self.draw)


def harden_best(
    plan: Plan,
    evaluate: Callable[[nn.Module], float],
    draws: int = 8,
    optimizer: torch.optim.Optimizer | None = None,
) -> float:
    """Draw some masks, score each hardened model by `evaluate` (higher is better), harden with the best; its score."""
    drawn = [module for module in plan.model.modules() if isinstance(module, Drawn)]
    if not drawn:
        raise ConfigError("this plan draws no masks: use harden_best with HardConcrete or StochasticSparsification")
    require_count("draws", draws, 1, "give 1 or more")
    plan.require_finite()
    scores = []
    for number in range(1, draws + 1):
        _set_draw(drawn, number)
        with plan.hardened() as model, torch.no_grad():
            scores.append(float(evaluate(model)))
    if all(math.isnan(score) for score in scores):
        raise ConfigError("evaluate gave nan for every draw: return a number, higher for a better model")
    best = max(range(draws), key=lambda i: -math.inf if math.isnan(scores[i]) else scores[i])
    _set_draw(drawn, best + 1)
    plan.harden(optimizer)
    return scores[best]


def _set_draw(drawn: list[Drawn], number: int) -> None:
    for relaxation in drawn:
        relaxation.draw.fill_(number)


_CAP = 2**14  # scores of a layer, where the network is not read whole
_TINY = 1e-12  # the least |s| after rounding


@dataclass(frozen=True, kw_only=True)
class ScoredRival(Rival):
    """scope: compare magnitudes over the whole network ("global") or within each layer ("layer")."""

    scope: str = "global"

    scalars: ClassVar[tuple[str, ...]] = ("goal",)

    def check(self) -> None:
        super().check()
        if self.scope not in ("global", "layer"):
            raise ConfigError(f'scope={self.scope!r}: use "global" or "layer"')

    def goal(self, step: Tensor, steps: int) -> Tensor:
        """The share of weights to drop at this step: the target, unless a rival has a schedule."""
        return torch.full((), self.require_target(), dtype=torch.float32, device=step.device)

    def is_due(self, step: Tensor, steps: int) -> Tensor | None:
        """Whether the masks are renewed at this step; None: at every one."""
        return None

    def schedule(self, term: Term, step: Tensor) -> None:
        goal = self.goal(step, term.steps)
        term.set_scalar("goal", goal)
        self.update_masks(term, goal, self.is_due(step, term.steps))

    def update_masks(self, term: Term, goal: Tensor, due: Tensor | None = None) -> None:
        """Write the masks that the weights of now have at this sparsity, if they are due."""
        members = [r for r in term.relaxations if isinstance(r, ScoredMask)]
        weights = [whole(latent).to(torch.float32) for latent in term.latents()]
        scores = [r.score(weight) for r, weight in zip(members, weights, strict=True)]
        most = WHOLE if term.weights <= WHOLE else _CAP
        samples = [_sample(score, r.grouping, most) for score, r in zip(scores, members, strict=True)]
        if self.scope == "layer":
            cuts = [quantile(*sample, goal) for sample in samples]
        else:
            values, sizes = zip(*samples, strict=True)
            cuts = [quantile(torch.cat(values), torch.cat(sizes), goal)] * len(samples)
        for r, weight, score, cut in zip(members, weights, scores, cuts, strict=True):
            r.update(weight, score, cut, due)

    def round(self, term: Term, factor: float) -> None:
        groups = term.groups()
        for together in [[one] for one in groups] if self.scope == "layer" else [groups]:
            scores = [whole(decision) for decision, *_ in together]
            keep = self.choose(scores, [sizes for *_, sizes in together], factor)
            middle = boundary(scores, keep)
            for (decision, members, _), score, kept in zip(together, scores, keep, strict=True):
                size = (score - middle).abs().clamp_min(_TINY)
                write(decision, torch.where(kept, size, -size))
                for r in members:
                    assert isinstance(r, ScoredMask)
                    r.shift_cut(middle)

    def measure(self, term: Term) -> dict[str, Tensor]:
        return {**super().measure(term), "goal": term.scalar("goal")}


class ScoredMask(Relaxation):
    """W = w ⊙ 1{s ≥ 0}; the gradient reaches kept weights only."""

    kind: ClassVar[str] = "sparsity"

    def __init__(self, grouping: Grouping, device: torch.device) -> None:
        super().__init__(grouping, 0.0, device)
        self.decision.requires_grad_(False)

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.survives(self.grid()).to(weight.dtype)

    def score(self, weight: Tensor) -> Tensor:
        """|w|, averaged within each group."""
        return self.grouping.reduce(weight.abs()) / self.grouping.sizes

    def update(self, weight: Tensor, score: Tensor, cut: Tensor, due: Tensor | None) -> None:
        """Take the mask of this step, if one is due."""
        s = score - cut
        write(self.decision, s if due is None else torch.where(due, s, whole(self.decision)))

    def shift_cut(self, by: Tensor) -> None:
        """Rounding has moved τ; for relaxations that compute with it."""

    def keep(self, s: Tensor) -> Tensor | None:
        return self.survives(s)

    def threshold(self) -> Tensor:
        return self.decision.new_zeros(())

    def survives(self, s: Tensor) -> Tensor:
        return self.grouping.expand((s >= 0).to(s.dtype))


class LateMask(ScoredMask):
    """W = w while searching; w ⊙ 1{s ≥ 0} once hard."""

    def forward(self, weight: Tensor) -> Tensor:
        return super().forward(weight) if self.hard else weight

    def keep(self, s: Tensor) -> Tensor | None:
        return self.survives(s) if self.hard else None


def _sample(score: Tensor, grouping: Grouping, most: int) -> tuple[Tensor, Tensor]:
    """Some groups' scores, at most so many, and how many weights each stands for."""
    every = max(1, math.ceil(score.numel() / most))
    while math.gcd(every, 210) > 1:  # prefer no channel and no kernel position
        every += 1
    values, size = score.flatten()[::every], grouping.sizes
    # Filled on the device: a number copied there could not be captured in a CUDA graph.
    sizes = size.flatten()[::every] if isinstance(size, Tensor) else torch.full_like(values, size)
    return values, sizes * (math.prod(grouping.shape) / sizes.sum())
