"""Continuous Sparsification (chapter 4, Algorithm 1).

    W = c · θ ⊙ σ(β(s + τ)),   price λ Σ σ(β(s + τ)),   β from 1 to β_final,   m = 1{s + τ ≥ 0}

c = 1/σ(s_init) keeps the layers' scale at the first forward pass (rounded to a power of two where the precision of the
same weight is learned too, so that the grid stays a grid). What differs from the printed algorithm, which
`ContinuousSparsification.as_printed` is:

- c: printed is c = 1, which `rescale=False` gives.
- β reaches its final value after `anneal` of the steps and stays there, and s keeps a constant learning rate: rounding
  then changes next to nothing, while with the printed schedule it does.
- The forward pass has the mask of β, the backward pass that of a temperature γ ≤ β that gets to β_final later, after `gradient_anneal`
  of the steps: ∂W/∂θ := c·σ(γx) and ∂W/∂x := c·θ·γσ'(γx). With γ = β, as printed, a weight that is dropped early learns no more, and
  the slope of its gate is 0: the first choice of weights is the last.
- `target`: the share of weights with s + τ < 0 follows a cubic schedule to the target. One common shift τ (0 as
  printed) does it: at each step the best of a few moves, from 2⁻¹² to 1 times the spread of s either way (where whole
  channels go, which are few: the one that is best of all); which weights go is decided by their gradients alone.
- `start`: the printed algorithm starts from equal decisions ("uniform") and was made for hundreds of epochs from scratch. On a trained
  network, in 300 steps, their gradients are too small for β to decide anything. There s follows the weights' saliencies (see
  `paretorch.methods.sparsity.saliency`), c is 1, and the network is whole at the first step. "auto" looks whether the network is trained.
- Whole channels are chosen after 90 % of the steps, at the latest: one that comes back late upsets the norms behind it.
- With `latency=` of `compress` the target is a share of measured time, and saliencies are compared per millisecond that a channel saves: a wide layer
  that takes no time is not cut in vain.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from paretorch.core.attach.sites import Site
from paretorch.core.channels.coupling import Coupling, threshold_for
from paretorch.core.channels.shares import LATENCY
from paretorch.core.groups import Grouping
from paretorch.core.method import Automatic, Couples, Recordable, Term
from paretorch.core.step.optimizers import drop_rate, require_drops, sgd
from paretorch.core.step.schedules import cubic, geometric, progress
from paretorch.errors import ConfigError
from paretorch.methods.sparsity.mask import GATES, Mask, opening
from paretorch.methods.sparsity.pruning import Pruning, by_sorting
from paretorch.methods.sparsity.saliency import Saliency, is_trained
from paretorch.support.arithmetic import block_size, row_blocks
from paretorch.support.checks import require_count, require_number
from paretorch.support.sharded import is_sharded, whole, write

_STILL = 0.9  # of the steps: then whole channels, where these go, are chosen at the latest
_STEEP = 1e6  # times the temperature: gates have no slope then
_CLOSED = 1e-5  # of a gate at the start: less would be an error of rounding, by which c would multiply all weights
_FAR, _NEARER = 0.5, 0.2  # of a shift that follows a sample: how far off it jumps, and how fast it moves otherwise
_OPEN = 25.0  # a shift at which every gate is open, whatever the saliency
_BLOCK = 8  # channels: layers keep a multiple of so many if their time counts
_TINY = 1e-4  # the least |s + τ| after rounding: far above the rounding error of s + τ

STARTS = ("auto", "saliency", "uniform")


@dataclass(frozen=True, kw_only=True)
class ContinuousSparsification(Couples, Automatic, Recordable, Pruning):
    """Learn which weights to drop.

    target: share of the selected weights to drop, met exactly at `harden`; None: the budget of `compress` decides, or `init` and
    `penalty`, one of which must then be given.
    start: "saliency" (for trained networks; needs a target), "uniform" (for training from scratch), or "auto".
    init: s at the start, if that is uniform. penalty: λ, the price of one kept weight. final_temperature: β at the end.
    anneal: share of the steps after which β and the target are reached. gradient_anneal: share after which the gradient is as
    steep as the gate; not above `anneal`: it is all along, as printed. gate: "sigmoid", "erf", "arctan", "algebraic".
    lr, momentum: of the decisions' SGD, if the start is uniform. drops: shares of the steps after which its rate is a tenth of what it was.
    rescale: multiply the weights by c. Where whole channels go (group="channel" and an example): count, whether `target` is
    a share of the "weights" or of the "macs"; multiple, layers are filled up with zeros to a multiple of so many channels,
    and the target counts them (16 suits onnxruntime on AVX-512, which is slow at odd widths).

    Example:
        >>> import torch, warnings, paretorch as pt
        >>> model = torch.nn.Linear(20, 10)
        >>> plan = pt.compress(model, pt.ContinuousSparsification(target=0.8, group="channel"), steps=100)
        >>> with warnings.catch_warnings(action="ignore"):  # of masks that no step has decided
        ...     plan.harden()
        >>> int((model.weight == 0).all(1).sum())  # of ten channels
        8
    """

    start: str = "auto"
    init: float = 0.0
    penalty: float = 0.0
    final_temperature: float = 200.0
    anneal: float = 0.5
    gradient_anneal: float = 0.9
    gate: str = "sigmoid"
    lr: float = 0.1
    momentum: float = 0.9
    count: str = "weights"
    multiple: int = 1
    rescale: bool = True
    drops: tuple[float, ...] = ()

    scalars: ClassVar[tuple[str, ...]] = ("temperature", "shift", "gradient_temperature")
    per_layer: ClassVar[frozenset[str]] = frozenset({"group", "init", "gate"})
    takes_complex: ClassVar[bool] = True
    before: ClassVar[Mapping[str, Any]] = {"start": "uniform"}

    @classmethod
    def as_printed(
        cls, init: float, *, penalty: float = 1e-8, lr: float = 0.1, drops: tuple[float, ...] = (), **options: Any
    ) -> Self:
        """Algorithm 1 to the letter: c = 1, β grows over all steps, one temperature in both passes, no target.

        Args:
            init: s at the start, which decides the sparsity.
            penalty: λ.
            lr: Of the weights, which s has too.
            drops: Shares of the steps after which the rate of the weights is a tenth of what it was; that of s is then, too.
            options: Other fields, such as `final_temperature`, `momentum` and `exclude`.

        Example:
            >>> ContinuousSparsification.as_printed(-0.3, drops=(0.5, 0.75)).rescale
            False
        """
        printed: dict[str, Any] = {"start": "uniform", "anneal": 1.0, "gradient_anneal": 0.0, "rescale": False}
        return cls(init=init, penalty=penalty, lr=lr, drops=drops, **printed, **options)

    def check(self) -> None:
        super().check()
        if self.gate not in tuple(GATES):
            raise ConfigError(f"gate={self.gate!r} is not known: use one of {', '.join(GATES)}")
        if self.start not in STARTS:
            raise ConfigError(f"start={self.start!r} is not known: use one of {', '.join(STARTS)}")
        if self.start == "saliency" and self.penalty:
            raise ConfigError('penalty= moves decisions that start="uniform": leave it out, the target decides')
        require_number("init", self.init, -10.0, 10.0, "give a number from -10 to 10; the thesis uses -0.3 to 0.3")
        if opening(self.gate, self.init) < _CLOSED:
            raise ConfigError(
                f"init={self.init!r}: the {self.gate} gate lets nothing through there: give a number nearer to 0"
            )
        hint = "the temperature grows from 1, so give 1 or more"
        require_number("final_temperature", self.final_temperature, 1.0, math.inf, hint)
        hint = "give the share of the steps until the final temperature, above 0, up to 1"
        require_number("anneal", self.anneal, 0.0, 1.0, hint, above=True)
        hint = "give the share of the steps until the gradient is as steep as the gate, from 0 to 1"
        require_number("gradient_anneal", self.gradient_anneal, 0.0, 1.0, hint)
        require_number("penalty", self.penalty, 0.0, math.inf, "a price is 0 or more")
        require_number("lr", self.lr, 0.0, math.inf, "give a positive rate", above=True)
        require_number("momentum", self.momentum, 0.0, 1.0, "give 0 to 1")
        require_drops(self.drops)
        if self.count not in ("weights", "macs", LATENCY):
            raise ConfigError(f'count={self.count!r}: use "weights" or "macs"')
        require_count("multiple", self.multiple, 1, "give a number of channels, such as 16")
        if self.multiple > 1 and self.group != "channel":
            raise ConfigError(f'multiple={self.multiple} needs group="channel"')
        if self.count != "weights" and self.group != "channel":
            raise ConfigError(f'count="{self.count}" needs group="channel": single zeros save no multiply-adds')

    def check_goal(self) -> None:
        if self.start == "saliency" and self.target is None:
            raise ConfigError('start="saliency" needs a target=, the share of weights to drop')
        chooses_init = self.init != 0.0 or any("init" in options for options in self.overrides.values())
        is_printed = self.start == "uniform" and self.gradient_anneal <= self.anneal  # there init=0 is as good as any
        if self.target is None and not (chooses_init or self.penalty or is_printed):
            raise ConfigError(
                f"{type(self).__name__} has nothing to say how many weights to drop: give target=, such as 0.95, or compress a "
                "budget=, or choose init= and penalty= as the thesis does"
            )

    @property
    def counts(self) -> str:
        return self.count

    @property
    def block(self) -> int:
        return self.multiple

    @property
    def weighs_prices(self) -> bool:
        return self.count == LATENCY and self.start == "saliency"

    def with_latency(self, share: float) -> Self:
        multiple = self.multiple if self.multiple > 1 else _BLOCK
        return replace(self, target=1.0 - share, count=LATENCY, multiple=multiple)

    def undecided(self, term: Term) -> Tensor:
        """The average distance of the soft masks from those that rounding makes, where it turns some over included."""
        rounded = {
            id(decision): kept for (decision, *_), kept in zip(term.groups(), self._choose(term, 1.0), strict=True)
        }
        sums = []
        for relaxation, chain in zip(term.relaxations, term.chains, strict=True):
            kept = relaxation.grid(rounded[id(relaxation.decision)])
            for rows, own, part in chain.parts_of(relaxation):
                assert isinstance(own, Mask)
                s = own.grid(whole(own.decision))
                soft = own.gate.value(s + term.scalar("shift"), term.scalar("temperature"))
                rounds = kept if part is chain else kept[rows]
                sums.append(((soft - rounds.to(s.dtype)).abs() * own.grouping.sizes).sum())
        return torch.stack(sums).sum() / term.weights

    def check_groups(self, smallest: float, total: float) -> None:
        super().check_groups(smallest, total)
        if self.count != "weights" or self.multiple > 1:
            asked = f'count="{self.count}"' if self.count != "weights" else f"multiple={self.multiple}"
            raise ConfigError(
                f"{asked} needs to know which channels belong together: give compress an example= of the inputs"
            )

    def check_coupling(self, coupling: Coupling) -> None:
        if self.count == LATENCY:  # the target follows from what was measured
            return
        least = coupling.least(self.count, self.multiple)
        if self.target is not None and 1.0 - self.target < least:
            kept = "a channel" if self.multiple == 1 else f"{self.multiple} channels"
            raise ConfigError(
                f"target={self.target!r}: every layer keeps {kept}, so at most {1 - least:.4f} of the {self.count} can go"
            )

    def resolve_auto(self, model: nn.Module, sites: Sequence[Site]) -> Self:
        if self.start != "auto":
            return self
        is_free = self.target is None or self.penalty or self.optimizer is not None
        return replace(self, start="uniform" if is_free or not is_trained(model, sites) else "saliency")

    def relax(self, site: Site, grouping: Grouping, seed: int, together: set[str]) -> Mask:
        return Mask(self, site, grouping, on_grid="precision" in together)

    def decisions_optimizer(self, parameters: list[nn.Parameter], steps: int) -> torch.optim.Optimizer:
        if self.start == "saliency":
            return Saliency(parameters, steps)
        return sgd(parameters, self.lr, self.momentum, drops=bool(self.drops))

    def schedule(self, term: Term, step: Tensor) -> None:
        if self.drops and self.optimizer is None and self.start == "uniform":
            drop_rate(term.optimizer, self.lr, progress(step, term.steps), self.drops)
        forward = geometric(progress(step, self.anneal * term.steps), self.final_temperature)
        late = max(self.anneal, self.gradient_anneal) * term.steps
        backward = geometric(progress(step, late), self.final_temperature)
        if term.coupling is not None:
            still = step >= max(late, _STILL * term.steps)
            forward, backward = (torch.where(still, _STEEP * one, one) for one in (forward, backward))
        if self.start == "saliency":
            term.set_scalar("shift", torch.where(step == 0, _OPEN, term.scalar("shift")))
        term.set_scalar("temperature", forward)
        term.set_scalar("gradient_temperature", backward)

    def recording(self, term: Term) -> str | None:
        return None if self.drops else "all"

    def price(self, term: Term) -> Tensor | None:
        return term.scalars.new_full((), self.penalty) if self.penalty else None

    def steer(self, term: Term, step: Tensor) -> None:
        if self.target is None:
            return
        goal = cubic(progress(step, self.anneal * term.steps), 1.0, 1.0 - self.target)
        shift = term.scalar("shift")
        if term.coupling is not None:
            s = whole(term.decisions()[0])
            term.set_scalar("shift", -threshold_for(term.coupling, s, goal, self.count, self.multiple, -shift))
            return
        if self.start == "saliency":
            term.set_scalar("shift", _at_quantile(term, self.kind, 1.0 - goal))
            return
        weigh = term.sample.share
        s = term.read(self.kind) + shift
        error = torch.dot((s >= 0).to(s.dtype), weigh) - goal
        moves = -torch.sign(error) * torch.dot(s.abs(), weigh) * _moves(s.device)
        kept = (s >= -moves[:, None]).to(s.dtype).mv(weigh)
        best = (kept - goal).abs().argmin(0, keepdim=True)  # gathered, not indexed: that would wait for the device
        move = moves.gather(0, best).squeeze(0)
        if not term.sample.is_whole:
            # Within the noise of a sample only the smallest move: over many samples these add up to the target.
            move = torch.where(error.abs() < 4 * term.sample.noise(goal), moves[-1], move)
        term.set_scalar("shift", shift + move)

    def round(self, term: Term, factor: float) -> None:
        shift = term.scalar("shift")
        for (decision, _, _), kept in zip(term.groups(), self._choose(term, factor), strict=True):
            if is_sharded(decision):
                write(decision, _decided(whole(decision), shift, kept))
                continue
            for rows in row_blocks(tuple(decision.shape), block_size(decision.device)):
                own = decision.detach()[rows]
                own.copy_(_decided(own, shift, kept[rows]))

    def _choose(self, term: Term, factor: float) -> list[Tensor]:
        """Which groups rounding keeps, in the order of `term.groups()`."""
        scores = [whole(decision) + term.scalar("shift") for decision, _, _ in term.groups()]
        if self.target is None and factor == 1.0:
            return [score >= 0 for score in scores]
        share = 1.0 - (self.target if self.target is not None else float(_sparsity(term)))
        return term.keep_best(scores, min(share * factor, 1.0))

    def measure(self, term: Term) -> dict[str, Tensor]:
        return {
            "sparsity": _sparsity(term),
            "temperature": term.scalar("temperature"),
            "shift": term.scalar("shift"),
        }


def _decided(s: Tensor, shift: Tensor, kept: Tensor) -> Tensor:
    """s as far from the threshold as it is, on the side that rounding chose."""
    size = (s + shift).abs().clamp_min(_TINY)
    return torch.where(kept, size, -size) - shift


def _at_quantile(term: Term, kind: str, dropped: Tensor) -> Tensor:
    """The shift at which this share is dropped: saliencies may move too far in a step for small moves to follow."""
    shift, wanted = term.scalar("shift"), -by_sorting(term.read(kind), term.sample.share, dropped)
    if term.sample.is_whole:
        return wanted
    # Another sample at each step has a quantile that is a little off: a steep gate would make much of that.
    return torch.where((wanted - shift).abs() > _FAR, wanted, shift + _NEARER * (wanted - shift))


def _moves(device: torch.device) -> Tensor:
    """0 and 4⁻ᵏ: by how many spreads of s the shift may move in one step."""
    powers = torch.exp2(-torch.arange(0, 13, 2, device=device, dtype=torch.float32))
    return torch.cat([powers.new_zeros(1), powers])


def _sparsity(term: Term) -> Tensor:
    """The share of weights (or of what the target counts) that would be dropped if rounded now."""
    shift = term.scalar("shift")
    if term.coupling is not None:
        open_now = whole(term.decisions()[0]) + shift >= 0
        return 1.0 - term.coupling.share(open_now, term.method.counts, term.method.block)  # type: ignore[attr-defined]
    dropped = []
    for relaxation, chain in zip(term.relaxations, term.chains, strict=True):
        if is_sharded(relaxation.decision):
            return term.mean(lambda _, s: (s + shift < 0).to(s.dtype))
        for _, own, _ in chain.parts_of(relaxation):
            dropped.append(((own.grid(own.decision.detach()) + shift < 0) * own.grouping.sizes).sum())
    return torch.stack(dropped).sum() / term.weights
