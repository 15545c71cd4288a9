"""RigL (Evci, Gale, Menick, Castro, Elsen, "Rigging the Lottery: Making All Tickets Winners", ICML 2020), Algorithm 1.

    W = w ⊙ m,   every Δt steps until T_end, in each layer with n kept weights:

    k = ⌊n · α/2 · (1 + cos(πt/T_end))⌋
    drop   the k kept weights with the smallest |w|
    grow   the k weights with the largest |∂L/∂W| among all others, those just dropped included; new ones start at w = 0

Each layer keeps as many weights as it has at the start, so that the sparsity is the target from the first step on. A share d of
all weights is kept by every layer alike (density="uniform"), or by Erdős–Rényi-Kernel (density="erk"):

    d_l = min(1, ε · Σ shape_l / Π shape_l),   with ε such that Σ d_l n_l = d · Σ n_l

What differs: the optimizer steps at every step, also if the masks are renewed at it, so |w| is that after the step and the gradient
that before it; the momentum of a new weight is what is left of its old one. The first masks keep the largest weights, since a
network may be pretrained; start="random" is the paper's. No layer is left dense by itself: use `exclude`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from paretorch.core.attach.sites import Site
from paretorch.core.groups import Grouping
from paretorch.core.method import Term
from paretorch.core.step.noise import uniform
from paretorch.errors import ConfigError
from paretorch.methods.sparsity.rivals.rival import Rival, ScoredMask
from paretorch.support.arithmetic import widened
from paretorch.support.checks import require_count, require_number
from paretorch.support.sharded import whole, write


@dataclass(frozen=True, kw_only=True)
class RigL(Rival):
    """Train a sparse network, and move its kept weights to where the gradient is largest.

    Args:
        target: Share of the selected weights to drop, from the first step on.
        density: How the kept weights are spread over the layers: "uniform" or "erk".
        start: The first masks: the largest weights of each layer ("magnitude") or random ones ("random").
        fraction: α, the share of a layer's kept weights that is replaced at first; it falls to 0 along a cosine.
        every: Δt, steps between two renewals of the masks; a run with T_end ≤ Δt keeps its first masks.
        stop: T_end as a share of the steps.
    """

    density: str = "uniform"
    start: str = "magnitude"
    fraction: float = 0.3
    every: int = 100
    stop: float = 0.75

    scalars: ClassVar[tuple[str, ...]] = ("fraction",)

    def check(self) -> None:
        super().check()
        if self.group != "weight":
            raise ConfigError(f'group={self.group!r}: RigL moves single weights, so use group="weight"')
        if self.density not in ("uniform", "erk"):
            raise ConfigError(f'density={self.density!r}: use "uniform" or "erk"')
        if self.start not in ("magnitude", "random"):
            raise ConfigError(f'start={self.start!r}: use "magnitude" or "random"')
        hint = "give the share of kept weights to replace at first, above 0, up to 1"
        require_number("fraction", self.fraction, 0.0, 1.0, hint, above=True)
        require_count("every", self.every, 1, "give the steps between two renewals of the masks, 1 or more")
        hint = "give the share of the steps until the masks stay, above 0, up to 1"
        require_number("stop", self.stop, 0.0, 1.0, hint, above=True)

    def relax(self, site: Site, grouping: Grouping, seed: int, together: set[str]) -> "_Wiring":
        self.require_target()
        return _Wiring(grouping, site.weight, seed)

    def schedule(self, term: Term, step: Tensor) -> None:
        if not _members(term)[0].is_started:
            self._start(term, step)
        end = self.stop * term.steps
        # In fp64: where the count of a layer is a whole number, fp32 would often round down to the one below.
        fraction = self.fraction / 2 * (1.0 + torch.cos(math.pi * (widened(step) / end).clamp_max(1.0)))
        term.set_scalar("fraction", fraction)
        # Asked on the device, which nothing here waits for: at most steps the answer is no, and everything stays.
        due = (step > 0) & (step < end) & (torch.remainder(step, self.every) == 0)
        for r, latent in zip(_members(term), term.latents(), strict=True):
            r.renew(latent, torch.where(due, fraction, 0.0))

    def _start(self, term: Term, step: Tensor) -> None:
        """The first masks, when the plan is made; a state that is loaded later has masks of its own."""
        members = _members(term)
        counts = kept_counts([r.grouping.shape for r in members], 1.0 - self.require_target(), self.density)
        for r, latent, count in zip(members, term.latents(), counts, strict=True):
            magnitude = whole(latent).to(torch.float32).abs()
            score = magnitude if self.start == "magnitude" else uniform(magnitude.shape, step, r.seed)
            order = torch.argsort(score.flatten(), descending=True, stable=True)
            r.keep_only(_first(order, count).view(score.shape))
            r.is_started = True

    def round(self, term: Term, factor: float) -> None:
        # The masks are on target already; a budget may want fewer weights, or some more.
        members, scores = _members(term), []
        for r, latent in zip(members, term.latents(), strict=True):
            growth = r.growth()
            kept = r.survives(r.grid(whole(r.decision))) > 0
            scores.append(torch.where(kept, whole(latent).to(torch.float32).abs(), growth / (1.0 + growth) - 2.0))
        keep = self.choose(scores, [torch.ones_like(score) for score in scores], factor)
        for r, kept in zip(members, keep, strict=True):
            r.keep_only(kept)

    def measure(self, term: Term) -> dict[str, Tensor]:
        return {**super().measure(term), "fraction": term.scalar("fraction")}


class _Wiring(ScoredMask):
    """W = w ⊙ 1{s ≥ 0}, with s = ±1, and the last gradient of all weights, which says where to grow."""

    def __init__(self, grouping: Grouping, weight: Tensor, seed: int) -> None:
        super().__init__(grouping, weight.device)
        # A Parameter that needs no gradient, as θ is: DDP would send a buffer to all ranks at every forward pass.
        empty = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        self.gradient = nn.Parameter(empty, requires_grad=False)
        self.seed = seed
        self.is_started = False

    @classmethod
    def pull_all(
        cls,
        members: Sequence[Self],
        grids: Sequence[Tensor],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        gradients: Sequence[Tensor],
        decide: bool,
    ) -> tuple[list[Tensor], list[Tensor] | None]:
        """∂L/∂w = m ⊙ ∂L/∂W, and a copy of ∂L/∂W, which nobody else keeps of dropped weights."""
        if not members[0].hard:
            torch._foreach_copy_([r.gradient.data for r in members], list(gradients))
        masks = [r.survives(s).to(one.dtype) for r, s, one in zip(members, grids, gradients, strict=True)]
        return list(torch._foreach_mul(list(gradients), masks)), None

    def renew(self, latent: nn.Parameter, fraction: Tensor) -> None:
        """Replace this fraction of the kept weights; θ of new ones becomes zero."""
        weight = whole(latent)
        kept = self.grid(whole(self.decision)) >= 0
        count = (fraction * kept.sum()).floor()
        smallest = torch.argsort(torch.where(kept, weight.abs().to(torch.float32), torch.inf).flatten(), stable=True)
        stays = kept & ~_first(smallest, count).view(kept.shape)
        growth = torch.where(stays, -1.0, self.growth())
        steepest = torch.argsort(growth.flatten(), descending=True, stable=True)
        grown = _first(steepest, count).view(kept.shape)
        self.keep_only(stays | grown)
        write(latent, weight.masked_fill(grown & ~kept, 0.0))

    def growth(self) -> Tensor:
        """|∂L/∂W|; 0 if it is not finite: a fused optimizer skips such a step of a gradient scaler only after the gradients were read."""
        return self.gradient.abs().nan_to_num(nan=0.0, posinf=0.0)

    def keep_only(self, kept: Tensor) -> None:
        """Write a mask into the decision."""
        write(self.decision, torch.where(kept, 1.0, -1.0))


def kept_counts(shapes: Sequence[Sequence[int]], density: float, how: str) -> list[int]:
    """How many weights each layer keeps: at least one, if there are enough, and of all together exactly the share."""
    sizes = [math.prod(shape) for shape in shapes]
    wanted = density * sum(sizes)
    ideal = [density * size for size in sizes] if how == "uniform" else _erk(shapes, wanted)
    counts = [min(size, max(1, math.floor(one))) for one, size in zip(ideal, sizes, strict=True)]
    # What rounding has left goes to the layers that it took most from; what it has added is taken from the largest.
    left = math.floor(wanted + 0.5) - sum(counts)
    order = sorted(range(len(sizes)), key=lambda i: counts[i] - ideal[i])
    for i in [i for i in order if counts[i] < sizes[i]][: max(left, 0)]:
        counts[i] += 1
    for _ in range(-left):
        counts[counts.index(max(counts))] -= 1
    return counts


def _erk(shapes: Sequence[Sequence[int]], wanted: float) -> list[float]:
    """Weights per layer in proportion to the sum of its dimensions; layers that this would overfill are dense."""
    sizes, sums = [math.prod(shape) for shape in shapes], [sum(shape) for shape in shapes]
    dense: set[int] = set()
    while True:
        rest = [i for i in range(len(shapes)) if i not in dense]
        scale = (wanted - sum(sizes[i] for i in dense)) / sum(sums[i] for i in rest) if rest else 0.0
        over = {i for i in rest if scale * sums[i] > sizes[i]}
        if not over:
            return [float(sizes[i]) if i in dense else scale * sums[i] for i in range(len(shapes))]
        dense |= over


def _first(order: Tensor, count: Tensor | int) -> Tensor:
    """True at the first `count` places of an order, a number that may be on the device."""
    places = torch.arange(len(order), device=order.device)
    return torch.zeros_like(order, dtype=torch.bool).scatter(0, order, places < count)


def _members(term: Term) -> list[_Wiring]:
    return [r for r in term.relaxations if isinstance(r, _Wiring)]
