"""The plan: the life of all relaxations on one model, in step with the user's own loop.

plan = compress(model, *methods, steps=N)
loss.backward(); optimizer.step(); plan.step(); optimizer.zero_grad()
plan.harden(optimizer); small = plan.finalize()
"""

import contextlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from paretorch.core.attach.activations import OutputSite
from paretorch.core.attach.sites import Site
from paretorch.core.attach.weights import RelaxedWeight
from paretorch.core.decisions import Decisions
from paretorch.core.finish.byte_budget import ByteBudget, Edit
from paretorch.core.finish.finalize import Attached
from paretorch.core.finish.latency_budget import LatencyBudget
from paretorch.core.finish.recalibrate import recalibrate_norms
from paretorch.core.method import Method, Recordable, Term
from paretorch.core.relaxation import Chain
from paretorch.core.state import PlanState
from paretorch.core.step.engine import Engine, Scaling
from paretorch.core.step.loop import LoopChecks, StaleGuard
from paretorch.core.step.optimizers import follow_decisions, load_state, optimizer_of
from paretorch.core.step.recorded import Compiled, Recorded
from paretorch.core.step.update import (
    add_prices,
    advance,
    check_finite,
    price_now,
    warn_undecided,
)
from paretorch.errors import ConfigError, DivergenceError

_ATTRIBUTE = "_paretorch_plan"


class Plan:
    """The decisions of one model: made by `compress`, stepped in your loop, rounded by `harden`, ended by `finalize`.

    `Plan.of(model)` finds it again after deepcopy, averaging, wrapping or loading.

    Example:
        >>> import torch, paretorch as pt
        >>> model = torch.nn.Linear(20, 10)
        >>> plan = pt.compress(model, pt.ContinuousSparsification(target=0.9), steps=2)
        >>> optimizer = torch.optim.SGD(plan.param_groups(weight_decay=1e-4), lr=0.1)
        >>> for _ in range(2):
        ...     model(torch.randn(8, 20)).square().mean().backward()
        ...     optimizer.step(); plan.step(); optimizer.zero_grad()
        >>> plan is pt.Plan.of(model), plan.is_hard, plan.metrics()["step"]
        (True, False, 2.0)
    """

    def __init__(
        self,
        model: nn.Module,
        sites: list[Site],
        chains: list[Chain],
        terms: list[Term],
        state: PlanState,
        outputs: list[tuple[OutputSite, Chain]],
    ) -> None:
        self.model = model
        self._attached = Attached(model, sites, chains, outputs)
        self._sites, self._chains, self._terms, self._state = sites, chains, terms, state
        self._is_finalized = False  # once finalized
        self._weights = [chain for chain in chains if isinstance(chain, RelaxedWeight)]
        self._checks = LoopChecks(model, terms)  # before the engine, whose hook moves weights
        self._engine = Engine(
            model, self._weights, frozenset(t.method.kind for t in terms if t.method.trains_decisions)
        )
        self._decisions = Decisions(terms, self._weights, state, self._engine, self._attached)
        self._recorded = Recorded()
        self._compiled: Compiled | None = None
        self._guard = StaleGuard(model, [term for term in terms if not term.is_on_weights])
        model.__dict__[_ATTRIBUTE] = self
        for term in terms:
            term.method.schedule(term, state.step)
        state.watch(self._weights, self._after_load)
        self._engine.write()

    @staticmethod
    def of(model: nn.Module) -> "Plan":
        """The plan of a compressed model, through wrappers (DDP, averaged and compiled models)."""
        for plan in plans_of(model):
            return plan
        raise ConfigError("this model has no plan: make one with paretorch.compress(model, ...)")

    # Training

    def param_groups(self, weight_decay: float = 0.0, *, decay_vectors: bool = True) -> list[dict[str, Any]]:
        """Everything that the user's optimizer trains: all parameters but the decisions.

        The learned ranges of activations are groups of their own, with the decay that their method asks for.

        Args:
            weight_decay: Of the first group: all weights and, as in `optimizer(model.parameters(), weight_decay=…)`, norms and biases.
            decay_vectors: False puts parameters of fewer than two dimensions, norms and biases, into a group of their own without
                decay, as is usual for transformers.
        """
        mine = {id(decision) for term in self._terms for decision in term.decisions()}
        own: dict[float, list[nn.Parameter]] = {}
        for parameter, decay in (one for term in self._terms for r in term.relaxations for one in r.trained()):
            own.setdefault(decay, []).append(parameter)
            mine.add(id(parameter))
        mine |= {id(weight.tensor) for weight in self._weights if weight.frozen}
        weights = [p for p in self._in_order() if id(p) not in mine and p.requires_grad]
        vectors = [] if decay_vectors else [p for p in weights if p.dim() < 2]
        first = [p for p in weights if decay_vectors or p.dim() > 1]
        groups: list[dict[str, Any]] = [{"params": first, "weight_decay": weight_decay}] if first or not own else []
        groups += [{"params": vectors, "weight_decay": 0.0}] if vectors else []
        return groups + [{"params": parameters, "weight_decay": decay} for decay, parameters in own.items()]

    def _in_order(self) -> Iterator[nn.Parameter]:
        """The model's parameters, relaxed weights after the others of their layer: the order that states of optimizers have."""
        behind = {id(weight.latent): weight.tensor for weight in self._weights if not weight.is_template}
        moved = {id(tensor) for tensor in behind.values()}
        for parameter in self.model.parameters():
            if id(parameter) in behind:
                yield behind[id(parameter)]
            elif id(parameter) not in moved:
                yield parameter

    def step(self, scaler: torch.amp.GradScaler | None = None) -> None:
        """After `optimizer.step()` (and before `scaler.update()`): price, update and clip; then the schedules advance."""
        self._require_active()
        if scaler is not None and not hasattr(scaler, "unscale_"):
            raise ConfigError(f"plan.step takes a GradScaler or nothing, not {type(scaler).__name__}")
        self._checks.before_plan_step(scaler)
        with torch.no_grad(), self._state.without_autocast():
            overflow = scaler is not None and _has_overflown(scaler)
            scaling = None if scaler is None else _scaling(scaler, self._state.step.device)
            self._engine.collect(overflow, scaling, self.is_hard)
            decisions = [term.decisions() for term in self._terms]
            if not self.is_hard:
                count = self._state.count_step()
                for term in self._terms:
                    term.prepare(self._engine.version)
                    optimizer_of(term)
                    term.count = (
                        None if self._compiled else count
                    )  # code that depends on it would be compiled at every step
                key = None if scaler is not None else self._recording()
                if key is not None and self._engine.keep_gradients():
                    self._record(lambda: self._update(None, False, decisions, then=self._advance), ("update", *key))
                else:
                    self._update(scaler, overflow, decisions)
                    self._record(self._advance, key)
                self._engine.note_written()
            for own in decisions:
                for decision in own:
                    decision.grad = None
            self._guard.renew()

    def compile(self) -> None:
        """Compile schedules and feedback with torch's compiler, from the next step on.

        That takes 5 to 30 seconds once, and saves launches of small kernels. It pays in a loop that is captured as one CUDA graph.
        """
        self._compiled = Compiled(advance)

    def _advance(self) -> None:
        """The schedules of the next step, and its weights."""
        (self._compiled or advance)(self._terms, self._state.step)
        self._engine.write(clip=True)

    def _recording(self) -> tuple[Hashable, ...] | None:
        """Which recording of `_advance` fits this step."""
        if not self._engine.is_fused or not all(term.is_on_weights for term in self._terms):
            return None  # autograd has the gradients of other decisions elsewhere at every step
        found = tuple(
            term.method.recording(term) if isinstance(term.method, Recordable) and not term.method.optimizer else None
            for term in self._terms
        )
        return None if None in found else (self._engine.is_deferred, *found)

    def _record(self, body: Callable[[], None], key: tuple[Hashable, ...] | None) -> None:
        self._recorded.run(body, self._state.step.device, self._engine.version, key)

    def _update(
        self,
        scaler: torch.amp.GradScaler | None,
        overflow: bool,
        decisions: list[list[nn.Parameter]],
        then: Callable[[], None] | None = None,
    ) -> None:
        """Price and update the decisions of all methods, from the same state; `then` is called afterwards."""
        scaled = []
        pairs = zip(self._terms, decisions, strict=True)
        trained = [(term, own, term.optimizer) for term, own in pairs if term.optimizer is not None]
        for term, own, optimizer in trained:
            check_finite(term, own, self._state.step, scaler)
            if scaler is not None and not term.is_on_weights and any(d.grad is not None for d in own):
                scaler.unscale_(optimizer)
                scaled.append(optimizer)
        add_prices([(term, own) for term, own, _ in trained], self._terms, self._engine)
        for term, _, optimizer in trained:
            if scaler is not None and optimizer in scaled:
                scaler.step(optimizer)
            elif not (overflow and term.is_on_weights):
                optimizer.step()
        if then is not None:
            then()

    def _after_load(self, hard: bool) -> None:
        """A state was loaded. By assignment it replaces decisions: what their optimizers know goes over to the new ones."""
        for term in self._terms:
            if estimates := self._state.estimates(term.method.kind):
                term.method = replace(term.method, **estimates)
                for relaxation, site in zip(term.relaxations, term.sites, strict=True):
                    relaxation.adopt(term.method.for_site(site))
            if term.coupling is not None and term.coupling.times is not None:
                term.coupling.times = self._state.numbers(f"{term.method.kind}_times")
        self._decisions.set_phase(hard)
        self._engine.take_loaded()
        for term in self._terms:
            follow_decisions(term)

    def step_on_host(self) -> int | None:
        """The step counter as a number; None on a GPU, where looking would wait for it."""
        return None if self._state.step.is_cuda else int(self._state.step)

    @contextmanager
    def noise_sample(self, number: int) -> Iterator[None]:
        """One of several passes of a step, each with noise of its own; gradients add up (see `noise_samples`)."""
        self._require_active()
        try:
            with self._state.shifted(number), self._engine.sample():
                yield
        finally:
            if number and not self._is_finalized:
                self._engine.write()

    def refresh(self) -> None:
        """Compute the weights anew, after decisions were written from outside."""
        self._require_active()
        self._engine.settle()
        self._engine.write()

    def penalty(self) -> Tensor:
        """The price now, λ_keep Σ keep + λ_bits Σ keep·bits; for logging, the plan adds its gradient itself."""
        self._require_active()
        return price_now(self._terms)

    def metrics(self) -> dict[str, float]:
        """Step, sparsity, bits, temperature … as numbers; reads them from the device, so call it when you log."""
        self._require_active()
        values: dict[str, Tensor] = {}
        with self._state.without_autocast():
            for term in self._terms:
                values |= term.method.measure(term)
        numbers = {name: float(value) for name, value in values.items()}
        if bad := [name for name, value in numbers.items() if value != value]:
            raise DivergenceError(
                f"{', '.join(bad)} is not a number any more: lower the learning rate, or go back to a checkpoint"
            )
        return {"step": float(self._state.step), **numbers}

    def decided(self) -> dict[str, int]:
        """How many weights each number of `metrics` is over: those that the method acts on, whether they are kept or not.

        A sparsity that counts multiply-adds is over no number of weights, and is left out.
        """
        return {
            "sparsity" if term.method.unit == "kept" else "bits": term.counted
            for term in self._terms
            if term.is_on_weights and getattr(term.method, "counts", "weights") == "weights"
        }

    # Deciding

    @property
    def is_hard(self) -> bool:
        """Whether `harden` was called."""
        return self._state.is_hard

    @property
    def steps(self) -> int:
        """The horizon: optimizer steps until `harden`."""
        return self._state.steps

    def harden(self, optimizer: torch.optim.Optimizer | None = None, recalibrate: Iterable[Any] | None = None) -> None:
        """Round every decision, exactly on target. Weights may go on training with the decisions fixed.

        With `optimizer` dropped weights become zero, and their momentum is forgotten: decay does not move them. `recalibrate`,
        batches of inputs, re-estimates batch norm. Warns where decisions are still undecided, so that rounding changes the network.
        Refuses, with nothing changed, weights or decisions that are not finite.
        """
        self._require_active()
        if optimizer is not None and not hasattr(optimizer, "state"):
            raise ConfigError(
                f"plan.harden takes the optimizer of the weights, not {type(optimizer).__name__}: give one, or none"
            )
        if not self.is_hard:
            self.require_finite()
            for term in self._terms:
                warn_undecided(term, self._state.step)
            self._decisions.round(optimizer)
        if recalibrate is not None:
            recalibrate_norms(self.model, recalibrate)

    def require_finite(self) -> None:
        """Refuse to round where a weight or a decision is not finite; the error names it."""
        self._decisions.require_finite()

    def set_budget(self, budget: ByteBudget) -> None:
        """Hold the saved file to a number of bytes."""
        self._decisions.budget = budget

    def set_latency(self, latency: LatencyBudget) -> None:
        """Hold the measured time of the network to a number of milliseconds."""
        self._decisions.latency = latency
        for term in self._terms:
            if term.coupling is not None and term.coupling.times is not None:
                self._state.add_numbers(f"{term.method.kind}_times", term.coupling.times)

    def check_budget(self) -> None:
        """Refuse a budget that rounding could not meet, before any training; the plan is no good afterwards."""
        self._decisions.check_budget()

    @contextmanager
    def hardened(self) -> Iterator[nn.Module]:
        """Preview: inside, the model computes with rounded decisions; afterwards everything is as before, unless it was finalized."""
        self._require_active()
        with contextlib.nullcontext() if self.is_hard else self._decisions.rounded():
            yield self.model

    # Leaving

    def dense_state_dict(self) -> dict[str, Tensor]:
        """A copy of the state of the plain network: its own keys, effective weights, whole on every rank."""
        self._require_active()
        return self._decisions.dense_state_dict()

    def plain_state_dict(self) -> dict[str, Tensor]:
        """The state that `finalize` would leave: dropped channels are gone, quantized activations have their own."""
        self._require_active()
        return self._decisions.plain_state_dict()

    def edits(self) -> list[Edit]:
        """What the file must say beside the values: channels that are gone, quantized activations, scales of grids."""
        return self._decisions.edits()

    def finalize(self) -> nn.Module:
        """The model as an ordinary module again, with the same outputs and its original keys; hardens if need be."""
        self.harden()
        self._attached.check_whole()
        state, edits = self.dense_state_dict(), self.edits()
        self._attached.detach(state)
        self._attached.cut(edits)
        self._attached.detach_outputs()
        self._state.remove()
        self._engine.close()
        self._checks.close()
        del self.model.__dict__[_ATTRIBUTE]
        self._is_finalized = self._decisions.are_final = True
        if (budget := self._decisions.budget) is not None:
            self._attached.trim(budget, edits)
            if budget.finish is not None:
                budget.finish(self.model)
        self._attached.note(edits)
        return self.model

    def _require_active(self) -> None:
        if self._is_finalized:
            raise ConfigError(
                "this plan is over, finalize has ended it: make a new one with paretorch.compress(model, ...)"
            )

    # Saving

    def state_dict(self) -> dict[str, Any]:
        """The state of the decisions' optimizers; everything else is in the model's own state."""
        return {term.method.kind: term.optimizer.state_dict() for term in self._terms if term.optimizer is not None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the decisions' optimizers; load the model's own state first."""
        if not isinstance(state, Mapping):
            raise ConfigError(f"a {type(state).__name__} is no state of a plan: give what plan.state_dict() returned")
        if unknown := state.keys() - {term.method.kind for term in self._terms}:
            raise ConfigError(
                f"this is no state of this plan, it has {min(unknown)!r}: give what plan.state_dict() returned"
            )
        # Lays decisions out as the weights are, which may have been sharded since `compress`.
        batches = self._engine.batches()
        for term in self._terms:
            load_state(term, state.get(term.method.kind))
        with torch.no_grad():
            # Part by part, as at every step: the last bit of W may depend on where a part ends.
            for batch in batches:
                if batch.is_sharded and not batch.holds_latent:
                    batch.write()

    def methods(self) -> tuple[Method, ...]:
        """The methods, in the order given."""
        return tuple(term.method for term in self._terms)

    def __repr__(self) -> str:
        names = ", ".join(type(term.method).__name__ for term in self._terms)
        phase = "hardened" if self.is_hard else f"searching, {self.steps} steps"
        count = len(self._attached.outputs)
        outputs = f", {count} activations" if count else ""
        return f"Plan({names}: {len(self._sites)} weights{outputs}, {phase})"


def _has_overflown(scaler: torch.amp.GradScaler) -> bool:
    """Whether a gradient that the scaler has looked at since its last update is not finite."""
    states = scaler._per_optimizer_states.values()
    return any(float(found) > 0 for state in states for found in state["found_inf_per_device"].values())


def _scaling(scaler: torch.amp.GradScaler, device: torch.device) -> Scaling:
    return Scaling(torch.tensor(scaler.get_scale(), dtype=torch.float32, device=device))


def plans_of(model: nn.Module) -> Iterator[Plan]:
    """The plans of a model and its parts: of several networks, or of one and an average of it."""
    found = (module.__dict__.get(_ATTRIBUTE) for module in model.modules())
    return (plan for plan in found if isinstance(plan, Plan))
