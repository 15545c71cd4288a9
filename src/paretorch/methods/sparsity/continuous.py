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
- Whole channels are chosen after 90 % of the steps, at the latest: one that comes back late upsets the norms behind it.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from paretorch.core.attach.sites import Site
from paretorch.core.channels.coupling import Channels, Coupling, sum_rows
from paretorch.core.channels.threshold import threshold_for
from paretorch.core.groups import Grouping
from paretorch.core.method import Couples, Term
from paretorch.core.relaxation import Relaxation
from paretorch.core.step.schedules import cubic, geometric, progress
from paretorch.core.step.solvers import drop_rate, require_drops, sgd
from paretorch.errors import ConfigError
from paretorch.methods.sparsity.gates import GATES
from paretorch.methods.sparsity.pruning import Pruning
from paretorch.support.checks import require_count, require_number
from paretorch.support.sharded import whole, write

_STILL = 0.9  # of the steps: then whole channels, where these go, are chosen at the latest
_STEEP = 1e6  # times the temperature: gates have no slope then
_CLOSED = 1e-5  # of a gate at the start: less would be an error of rounding, by which c would multiply all weights
_TINY = 1e-4  # the least |s + τ| after rounding: far above the rounding error of s + τ


@dataclass(frozen=True, kw_only=True)
class ContinuousSparsification(Couples, Pruning):
    """Learn which weights to drop.

    target: share of the selected weights to drop, met exactly at `harden`; None: `init` and `penalty` decide.
    init: s at the start. penalty: λ, the price of one kept weight. final_temperature: β at the end.
    anneal: share of the steps after which β and the target are reached. gradient_anneal: share after which the gradient is as
    steep as the gate; not above `anneal`: it is all along, as printed. gate: "sigmoid", "erf", "arctan", "algebraic".
    lr, momentum: of the decisions' SGD. drops: shares of the steps after which its rate is a tenth of what it was.
    rescale: multiply the weights by c. Where whole channels go (group="channel" and an example): count, whether `target` is
    a share of the "weights" or of the "macs"; multiple, layers are filled up with zeros to a multiple of so many channels,
    and the target counts them (16 suits onnxruntime on AVX-512, which is slow at odd widths).
    """

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
        printed: dict[str, Any] = {"anneal": 1.0, "gradient_anneal": 0.0, "rescale": False}
        return cls(init=init, penalty=penalty, lr=lr, drops=drops, **printed, **options)

    def check(self) -> None:
        super().check()
        if self.gate not in tuple(GATES):
            raise ConfigError(f"gate={self.gate!r} is not known: use one of {', '.join(GATES)}")
        require_number("init", self.init, -10.0, 10.0, "give a number from -10 to 10; the thesis uses -0.3 to 0.3")
        if _opening(self.gate, self.init) < _CLOSED:
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
        if self.count not in ("weights", "macs"):
            raise ConfigError(f'count={self.count!r}: use "weights" or "macs"')
        require_count("multiple", self.multiple, 1, "give a number of channels, such as 16")
        if self.multiple > 1 and self.group != "channel":
            raise ConfigError(f'multiple={self.multiple} needs group="channel"')
        if self.count == "macs" and self.group != "channel":
            raise ConfigError('count="macs" needs group="channel": single zeros save no multiply-adds')

    @property
    def counts(self) -> str:
        return self.count

    @property
    def block(self) -> int:
        return self.multiple

    def undecided(self, term: Term) -> Tensor:
        """The average distance of the soft masks from those that rounding makes, where it turns some over included."""
        rounded = {
            id(decision): kept for (decision, *_), kept in zip(term.groups(), self._choose(term, 1.0), strict=True)
        }
        sums = []
        for relaxation in term.relaxations:
            assert isinstance(relaxation, Mask)
            s, sizes = relaxation.grid(whole(relaxation.decision)), relaxation.grouping.sizes
            soft = relaxation.gate.value(s + term.scalar("shift"), term.scalar("temperature"))
            sums.append(((soft - relaxation.grid(rounded[id(relaxation.decision)].to(s.dtype))).abs() * sizes).sum())
        return torch.stack(sums).sum() / term.weights

    def check_groups(self, smallest: float, total: float) -> None:
        super().check_groups(smallest, total)
        if self.count == "macs" or self.multiple > 1:
            asked = 'count="macs"' if self.count == "macs" else f"multiple={self.multiple}"
            raise ConfigError(
                f"{asked} needs to know which channels belong together: give compress an example= of the inputs"
            )

    def check_coupling(self, coupling: Coupling) -> None:
        least = coupling.least(self.count, self.multiple)
        if self.target is not None and 1.0 - self.target < least:
            kept = "a channel" if self.multiple == 1 else f"{self.multiple} channels"
            raise ConfigError(
                f"target={self.target!r}: every layer keeps {kept}, so at most {1 - least:.4f} of the {self.count} can go"
            )

    def relax(self, site: Site, grouping: Grouping, seed: int, together: set[str]) -> "Mask":
        return Mask(self, grouping, site.weight.device, on_grid="precision" in together)

    def decisions_optimizer(self, parameters: list[nn.Parameter], steps: int) -> torch.optim.Optimizer:
        return sgd(parameters, self.lr, self.momentum, drops=bool(self.drops))

    def schedule(self, term: Term, step: Tensor) -> None:
        if self.drops and self.optimizer is None:
            drop_rate(term.optimizer, self.lr, progress(step, term.steps), self.drops)
        forward = geometric(progress(step, self.anneal * term.steps), self.final_temperature)
        late = max(self.anneal, self.gradient_anneal) * term.steps
        backward = geometric(progress(step, late), self.final_temperature)
        if term.coupling is not None:
            still = step >= max(late, _STILL * term.steps)
            forward, backward = (torch.where(still, _STEEP * one, one) for one in (forward, backward))
        term.set_scalar("temperature", forward)
        term.set_scalar("gradient_temperature", backward)

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
        weigh = term.sample.share
        s = term.read(self.room) + shift
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
            size = (whole(decision) + shift).abs().clamp_min(_TINY)
            write(decision, torch.where(kept, size, -size) - shift)

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


def _opening(gate: str, init: float) -> float:
    """How much of each weight is kept at the start."""
    return float(GATES[gate].value(*torch.tensor([init, 1.0], dtype=torch.float32)))


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
    return term.mean(lambda _, s: (s + shift < 0).to(s.dtype))


_FORWARD, _BACKWARD = 0, 2  # places of the two temperatures among the scalars


def _once(grids: Sequence[Tensor]) -> list[Tensor]:
    """Each decision once: that of coupled channels is one for all weights."""
    return list({one.data_ptr(): one for one in grids}.values())


def _again(values: Sequence[Tensor], grids: Sequence[Tensor]) -> list[Tensor]:
    """From one value per decision to one per weight."""
    if len(values) == len(grids):
        return list(values)
    own = dict(zip([one.data_ptr() for one in _once(grids)], values, strict=True))
    return [own[one.data_ptr()].view(one.shape) for one in grids]


def _expanded(members: Sequence["Mask"], masks: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
    """Masks that broadcast against the weights, in their dtype."""
    found = [mask if one.is_single else one.grouping.expand(mask) for one, mask in zip(members, masks, strict=True)]
    dtype = like[0].dtype
    return found if found[0].dtype == dtype else [mask.to(dtype) for mask in found]


class Mask(Relaxation):
    """W = c · w ⊙ σ(β(s + τ)); hard: c · w ⊙ 1{s + τ ≥ 0}."""

    room: ClassVar[str] = "sparsity"

    def __init__(
        self, method: ContinuousSparsification, grouping: Grouping, device: torch.device, on_grid: bool
    ) -> None:
        super().__init__(grouping, method.init, device)
        self.gate = GATES[method.gate]
        start = _opening(method.gate, method.init)
        self.on_grid = on_grid
        self.lags = method.gradient_anneal > method.anneal
        scale = 1.0 / start if method.rescale else 1.0
        self.factor = 2.0 ** round(math.log2(scale)) if on_grid else scale
        self.is_single = grouping.is_single

    def batch_key(self) -> Hashable:
        return (self.hard, self.training, self.gate, self.lags)

    @property
    def is_elementwise(self) -> bool:
        return self.is_single

    @classmethod
    def apply_all(cls, members: Sequence["Mask"], grids: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
        masks = torch._foreach_mul(cls._masks(members, grids, _FORWARD), [one.factor for one in members])
        return list(torch._foreach_mul(list(weights), _expanded(members, masks, weights)))

    @classmethod
    def pull_all(
        cls,
        members: Sequence["Mask"],
        grids: Sequence[Tensor],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        gradients: Sequence[Tensor],
        decide: bool,
    ) -> tuple[list[Tensor], list[Tensor] | None]:
        # ∂W/∂w = c·m(γx) and ∂W/∂s = c·w·m'(γx), both at the gradient's temperature.
        factors = [one.factor for one in members]
        soft = cls._masks(members, grids, _BACKWARD)
        own = torch._foreach_mul(list(gradients), _expanded(members, torch._foreach_mul(soft, factors), gradients))
        if not decide:
            return list(own), None
        if inputs[0].is_complex():
            moved = [(gradient * weight.conj()).real for gradient, weight in zip(gradients, inputs, strict=True)]
        else:
            moved = list(torch._foreach_mul(list(gradients), list(inputs)))
        if moved[0].dtype != torch.float32:
            moved = [value.to(torch.float32) for value in moved]
        torch._foreach_mul_(moved, factors)
        groupings = [one.grouping for one in members]
        slopes = cls._slopes(members, grids, soft)
        if all(isinstance(one, Channels) for one in groupings):  # one decision for all
            return list(own), [sum_rows(groupings, moved) * slopes[0]]
        if not all(one.is_single for one in members):
            moved = [one.reduce(value) for one, value in zip(groupings, moved, strict=True)]
        torch._foreach_mul_(moved, slopes)
        return list(own), moved

    @classmethod
    def _masks(cls, members: Sequence["Mask"], grids: Sequence[Tensor], scalar: int) -> list[Tensor]:
        """The masks on their grids, at the temperature that this scalar has; those of a shared decision are made once."""
        first = members[0]
        shifted = torch._foreach_add(_once(grids), first.scalar(1))
        if first.hard:  # s + τ is never 0 once it is rounded
            masks = list(torch._foreach_clamp_min(torch._foreach_sign(shifted), 0.0))
        elif first.gate is GATES["sigmoid"]:
            masks = list(torch._foreach_sigmoid(torch._foreach_mul(shifted, first.scalar(first._place(scalar)))))
        else:
            masks = [first.gate.value(x, first.scalar(first._place(scalar))) for x in shifted]
        return _again(masks, grids)

    def _place(self, scalar: int) -> int:
        return scalar if self.lags and self.training else _FORWARD

    @classmethod
    def keep_all(cls, members: Sequence["Mask"], grids: Sequence[Tensor]) -> list[Tensor]:
        return _expanded(members, cls._masks(members, grids, _FORWARD), grids)

    @classmethod
    def slopes_all(cls, members: Sequence["Mask"], grids: Sequence[Tensor]) -> list[Tensor]:
        first = members[0]
        place = _BACKWARD if first.lags else _FORWARD
        shifted = torch._foreach_add(_once(grids), first.scalar(1))
        return _again([first.gate.slope(x, first.scalar(place)) for x in shifted], grids)

    @classmethod
    def _slopes(cls, members: Sequence["Mask"], grids: Sequence[Tensor], soft: Sequence[Tensor]) -> list[Tensor]:
        """dm/ds at the gradient's temperature, given the masks there: of a sigmoid it is γ m (1 − m)."""
        first = members[0]
        if first.gate is not GATES["sigmoid"]:
            place = first._place(_BACKWARD)
            shifted = torch._foreach_add(_once(grids), first.scalar(1))
            return _again([first.gate.slope(x, first.scalar(place)) for x in shifted], grids)
        slopes = torch._foreach_addcmul(list(soft), list(soft), list(soft), value=-1.0)
        torch._foreach_mul_(slopes, first.scalar(first._place(_BACKWARD)))
        return list(slopes)

    def forward(self, weight: Tensor) -> Tensor:
        return weight * (self.keep(self.grid()) * self.factor).to(weight.dtype)

    def keep(self, s: Tensor) -> Tensor:
        if self.hard:
            return self.survives(s)
        return self.grouping.expand(self.gate.value(s + self.scalar(1), self.scalar(0)))

    def threshold(self) -> Tensor:
        return -self.scalar(1)

    def survives(self, s: Tensor) -> Tensor:
        return self.grouping.expand((s + self.scalar(1) >= 0).to(s.dtype))

    def price_slope(self, s: Tensor) -> Tensor:
        return self.gate.slope(s + self.scalar(1), self.scalar(2))

    def scale_exponent(self) -> int | None:
        return round(math.log2(self.factor)) if self.on_grid else None
