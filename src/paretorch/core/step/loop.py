"""What a plan watches in the user's loop: batches that are skipped, and loops that would train decisions wrongly.

Gradients of decisions on weights are made from those of the weights, once the user's scaler has divided them. Decisions on
activations and coefficients of templates get theirs from autograd, as any parameter does. No optimizer of the user's clears these:
`loss.backward(); optimizer.zero_grad(); continue` must leave nothing behind (`StaleGuard`). An optimizer of `model.parameters()` would use
them too, and a scaler that the plan is not given would leave them multiplied: such loops are refused at their first step (`LoopChecks`).
"""

import sys
import weakref
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from paretorch.core.method import Term
from paretorch.errors import ConfigError
from paretorch.support.sharded import is_sharded

_checks: "weakref.WeakSet[LoopChecks]" = weakref.WeakSet()
_hooks: list[Any] = []
_DEPTH = 8
"""Frames between a scaler's step and the hook of the optimizer that it steps."""


class LoopChecks:
    """Looks at the optimizers and the scaler of the user's loop.

    Args:
        model: The model of the plan.
        terms: All terms of the plan.
    """

    def __init__(self, model: nn.Module, terms: Sequence[Term]) -> None:
        self._model, self._terms = model, terms
        self._scaler: Any = None
        self._register()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_scaler": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)  # of a deep copy
        self._register()

    def _register(self) -> None:
        _checks.add(self)
        if not _hooks:
            _hooks.append(register_optimizer_step_pre_hook(_before_step))

    def close(self) -> None:
        """The plan is over: its model is any other."""
        _checks.discard(self)

    def before_step(self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None) -> None:
        """Refuse an optimizer that holds decisions with gradients of their own; remember a scaler that steps weights."""
        if any(term.optimizer is optimizer for term in self._terms):
            return
        decisions = [one for term in self._terms if not term.is_on_weights for one in term.decisions()]
        if not decisions and scaler is None:
            return
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if any(id(one) in held and one.grad is not None for one in decisions):
            raise ConfigError(
                "this optimizer holds decisions of the plan, which the plan trains itself: give it "
                "plan.param_groups(weight_decay=...) in place of model.parameters()"
            )
        if scaler is not None and any(id(parameter) in held for parameter in self._model.parameters()):
            self._scaler = weakref.ref(scaler)

    def before_plan_step(self, given: torch.amp.GradScaler | None) -> None:
        """Refuse a step without the scaler that has stepped the model's optimizer, or one after the scaler's update."""
        scaler, self._scaler = None if self._scaler is None else self._scaler(), None
        if scaler is None or not scaler.is_enabled():
            return
        if given is None:
            raise ConfigError(
                "a GradScaler steps the optimizer, and the plan's gradients are scaled too: call plan.step(scaler)"
            )
        if given is scaler and not scaler._per_optimizer_states:
            raise ConfigError("scaler.update() came before plan.step(scaler): call it after the plan's step")


def _before_step(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if _checks:
        scaler = _stepping_scaler()
        for check in list(_checks):
            check.before_step(optimizer, scaler)


def _stepping_scaler() -> torch.amp.GradScaler | None:
    """The scaler whose `step` called the optimizer. Nothing else tells: it leaves no trace in optimizers that it steps."""
    frame: Any = sys._getframe(2)
    for _ in range(_DEPTH):
        if frame is None:
            return None
        if frame.f_code is torch.amp.GradScaler.step.__code__:
            scaler = frame.f_locals.get("self")
            return scaler if isinstance(scaler, torch.amp.GradScaler) else None
        frame = frame.f_back
    return None


class StaleGuard:
    """Clears a decision's gradient when the first backward pass after `zero_grad` reaches it.

    That pass is known by a parameter of the user's that has no gradient yet: the first of the model, which gets its own last.
    """

    def __init__(self, model: nn.Module, terms: list[Term]) -> None:
        self._model, self._terms = model, terms
        self._marker: tuple[nn.Parameter, ...] = ()
        self._guarded: dict[int, Any] = {}
        self.renew()

    def __deepcopy__(self, memo: dict[int, Any]) -> "StaleGuard":
        # The copy of the model is not whole yet; its decisions are guarded from the next step on.
        copied = StaleGuard.__new__(StaleGuard)
        memo[id(self)] = copied
        copied._model, copied._terms = deepcopy(self._model, memo), deepcopy(self._terms, memo)
        copied._marker, copied._guarded = (), {}
        return copied

    def renew(self) -> None:
        """Guard decisions that have come since, and choose the marker anew if it gets no gradients."""
        if not self._terms:
            return
        decisions = [decision for term in self._terms for decision in term.decisions()]
        mine = {id(decision) for decision in decisions}
        trained = [one for one in self._model.parameters() if one.requires_grad and id(one) not in mine]
        reached = [one for one in trained if one.grad is not None]
        self._marker = tuple((reached or trained)[:1])
        for decision in decisions:
            if id(decision) not in self._guarded and decision.requires_grad and not is_sharded(decision):
                self._guarded[id(decision)] = decision.register_hook(_Clear(self, decision))


class _Clear:
    def __init__(self, guard: StaleGuard, decision: nn.Parameter) -> None:
        self._guard, self._decision = guard, (decision,)

    def __call__(self, gradient: Tensor) -> None:
        if self._guard._marker and self._guard._marker[0].grad is None:
            self._decision[0].grad = None
