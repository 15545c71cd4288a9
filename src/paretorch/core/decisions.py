"""The decisions of a plan together: rounded to their targets or to a budget, previewed, and taken back to the search."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from paretorch.core.attach.weights import RelaxedWeight
from paretorch.core.finish.byte_budget import ByteBudget, Edit
from paretorch.core.finish.finalize import Attached
from paretorch.core.finish.latency_budget import LatencyBudget, Point
from paretorch.core.method import Steered, Term
from paretorch.core.state import PlanState
from paretorch.core.step.engine import Engine
from paretorch.core.step.update import clear_dropped_weights, require_finite
from paretorch.support.sharded import local, whole, write


class Decisions:
    """Rounds the decisions of all methods.

    Args:
        terms: The methods at work.
        weights: The relaxed weights.
        state: Step and phase.
        engine: Writes the weights that follow from the decisions.
        attached: Where the relaxations sit.
    """

    def __init__(
        self,
        terms: Sequence[Term],
        weights: Sequence[RelaxedWeight],
        state: PlanState,
        engine: Engine,
        attached: Attached,
    ) -> None:
        self._terms, self._weights = list(terms), list(weights)
        self._state, self._engine, self._attached = state, engine, attached
        self.budget: ByteBudget | None = None
        """What the saved file is held to, if anything."""
        self.latency: LatencyBudget | None = None
        """What the time of the network is held to, if anything."""
        self._time_factor = 1.0  # of the target of the method that removes channels: what measuring the network gave
        self.are_final = False
        """Whether the plan is over: a preview then leaves everything as it is."""

    def set_phase(self, hard: bool) -> None:
        """Read all decisions as rounded, or as continuous."""
        self._state.is_hard = hard
        self._engine.invalidate()
        for term in self._terms:
            for relaxation in term.relaxations:
                relaxation.hard = hard

    def require_finite(self) -> None:
        """Refuse to round if a weight or a decision is not finite; the error names it."""
        self._engine.settle()
        require_finite(self._weights, self._terms)

    def check_budget(self) -> None:
        """Refuse a budget that rounding could not meet; the decisions are no good afterwards."""
        assert self.budget is not None
        self.budget.check(self, self._copied())

    def round(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Round all decisions, to the budget if there is one; with an optimizer, dropped weights become zero and lose their momentum."""
        self._engine.settle()
        before = None if self.budget is None and self.latency is None else self._copied()
        if self.latency is not None and before is not None:
            self._fit_latency(self.latency, before)
        self.round_again(before, 1.0)
        if self.budget is not None and before is not None:
            self.budget.fit(self, before)  # which moves the targets
        else:
            for term in self._terms:
                if isinstance(term.method, Steered) and not self._is_timed(term):
                    term.method.warn_missed_target(term)
        if optimizer is not None:
            clear_dropped_weights(self._weights, optimizer)
        self._engine.write(clip=True)

    def round_again(self, before: list[Tensor] | None, factor: float, given: frozenset[str] = frozenset()) -> None:
        """Round the trained decisions `before` (None: as they are), with every target scaled by `factor`, but those of `given` kinds never up."""
        self._restore(before)
        # Masks first: a dropped weight costs no bits, whatever its precision.
        for term in sorted(self._terms, key=lambda one: -one.method.order):
            if not term.is_on_weights:
                self._engine.write()  # coefficients of templates are rounded for the templates as they will be
            with torch.no_grad(), self._state.without_autocast():
                term.method.round(term, self._scaled(term, factor, given))
            for relaxation in term.relaxations:
                relaxation.hard = True
            self._engine.invalidate()
        self.set_phase(True)
        self._engine.write()

    def _fit_latency(self, latency: LatencyBudget, before: list[Tensor]) -> None:
        """Find by how much the target of the method that removes channels is scaled, by measuring networks that are really cut."""
        term = next(one for one in self._terms if self._is_timed(one))

        def cut(factor: float) -> Point:
            self._time_factor = factor
            self.round_again(before, 1.0)
            return Point(term.time_left(), latency.stopwatch.network(self.edits()))

        try:
            self._time_factor = latency.fit(cut)
        except BaseException:  # a network that cannot be exported, or an impatient user
            self.resume_search(before)
            raise

    def _is_timed(self, term: Term) -> bool:
        return self.latency is not None and term.coupling is not None

    def resume_search(self, before: list[Tensor]) -> None:
        """Back to searching, with these decisions."""
        self._restore(before)
        self._engine.write()

    @contextmanager
    def rounded(self) -> Iterator[None]:
        """Inside, the model computes with rounded decisions; afterwards everything is as before, unless the plan is over."""
        self.require_finite()
        own = [tensor for term in self._terms for r in term.relaxations for tensor in (*r.parameters(), *r.buffers())]
        own += [*self._tensors(), *(weight.latent for weight in self._weights)]
        saved = [local(tensor).detach().clone() for tensor in own]
        try:
            self.round()
            yield
        finally:
            if not self.are_final:
                self.set_phase(False)
                with torch.no_grad():
                    for tensor, value in zip(own, saved, strict=True):
                        local(tensor).copy_(value)
                self._engine.write()

    def dense_state_dict(self) -> dict[str, Tensor]:
        """The state of the plain network, with the weights that follow from the decisions."""
        self._engine.settle()
        return self._attached.dense_state(self._state.order)

    def plain_state_dict(self) -> dict[str, Tensor]:
        """The same after the edits."""
        return self._attached.plain_state(self.dense_state_dict(), self.edits())

    def edits(self) -> list[Edit]:
        """What the decisions do to the structure of the network."""
        return self._attached.edits(self._terms)

    def _scaled(self, term: Term, factor: float, given: frozenset[str]) -> float:
        """By how much one target is scaled.

        Beside bits that can be scaled, masks never grow, and never shrink if they were to drop nothing: weights that the search has
        dropped, or has not tried to, would change the network. Channels follow the measured time: only a file that no bits can make
        smaller takes more of them.
        """
        bits = [one.method.share for one in self._terms if one.method.unit == "bits"]
        if self._is_timed(term):
            return self._time_factor * (min(factor, 1.0) if all(share is None for share in bits) else 1.0)
        if term.method.unit == "kept" and any(share is not None for share in bits):
            return 1.0 if term.method.share == 1.0 else min(factor, 1.0)
        return min(factor, 1.0) if term.method.kind in given else factor

    def _tensors(self) -> list[nn.Parameter]:
        return [decision for term in self._terms for decision in term.decisions()]

    def _copied(self) -> list[Tensor]:
        return [whole(decision).clone() for decision in self._tensors()]

    def _restore(self, before: list[Tensor] | None) -> None:
        self.set_phase(False)
        for decision, value in zip(self._tensors(), before, strict=True) if before is not None else ():
            write(decision, value)
