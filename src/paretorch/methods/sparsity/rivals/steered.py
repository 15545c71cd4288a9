"""A λ that leads to the target: for rivals whose λ decides the sparsity.

    goal(t) from 1 to the share that the target leaves, cubic, reached after 75 % of the steps
    λ(t) = v / (rate · rms slope),   v = v_max · clip(e / 0.1, 0, 1),   e the share kept above the goal

That is, the price alone moves a decision by v at each step: by v_max, 10 in a fifth of the steps, if too much is kept by 0.1 or more, and not
at all if too little is. The thesis tunes λ for each sparsity by hand. A fixed λ, with the rest cut at `harden`, would hold a
method to sparsities that it was not trained for.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from paretorch.core.method import Term
from paretorch.core.relaxation import Relaxation
from paretorch.core.step.schedules import cubic, progress
from paretorch.errors import ConfigError
from paretorch.methods.sparsity.rivals.rival import Rival

_ANNEAL = 0.75  # of the steps
_BAND = 0.1  # of the weights: from this error on, decisions move at full speed
_SPAN, _PART = 10.0, 0.2  # full speed: so many units of s in this part of the steps
_STILL = 0.02  # the least rms slope: gates that are all decided do not make the price explode


@dataclass(frozen=True, kw_only=True)
class SteeredRival(Rival):
    """steered: with a target, λ is moved so that the search itself gets there; otherwise it is constant."""

    steered: bool = False

    scalars: ClassVar[tuple[str, ...]] = ("price",)

    def check(self) -> None:
        super().check()
        if self.steered and self.target is None:
            raise ConfigError("steered=True needs a target: give the share of weights to drop, such as 0.9")

    @abstractmethod
    def kept(self, term: Term) -> Tensor:
        """The share of weights that is kept now, or is to be expected."""

    @abstractmethod
    def speed(self) -> float:
        """By how much a gradient of 1 moves a decision in one step, with momentum."""

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
