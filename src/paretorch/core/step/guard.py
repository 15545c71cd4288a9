"""Gradients of decisions inside the autograd graph, when a batch is skipped.

Decisions on activations and coefficients of templates get their gradients from autograd, and no optimizer of the user's clears
them. `loss.backward(); optimizer.zero_grad(); continue` must leave nothing behind: the next backward pass begins afresh.
"""

from copy import deepcopy
from typing import Any

from torch import Tensor, nn

from paretorch.core.method import Term
from paretorch.support.sharded import is_sharded


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
