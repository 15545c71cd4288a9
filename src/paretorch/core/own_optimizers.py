"""The optimizers of a plan's decisions: made at the first step, and continued from a state."""

from typing import Any

import torch
from torch import nn

from paretorch.core.method import Term
from paretorch.core.tensors import is_sharded
from paretorch.errors import ConfigError


def optimizer_of(term: Term) -> torch.optim.Optimizer | None:
    """The optimizer of the term's decisions; None where they are not trained."""
    # Made at the first step: sharding after `compress` replaces the parameter objects.
    if term.optimizer is None:
        parameters, build = term.decisions(), term.method.optimizer
        term.trained = parameters
        term.optimizer = build(parameters) if build else term.method.decisions_optimizer(parameters, term.steps)
        if build and not isinstance(term.optimizer, torch.optim.Optimizer):
            raise ConfigError(f"optimizer: the function returned {term.optimizer!r}, which is no optimizer")
    return term.optimizer


def follow_decisions(term: Term) -> None:
    """Where other parameters have taken the place of the decisions: what their optimizer knows goes over to the new ones."""
    old = term.optimizer
    if old is not None and any(map(_replaced, term.trained, term.decisions())):
        term.optimizer = None
        load_state(term, old.state_dict())


def load_state(term: Term, state: dict[str, Any] | None) -> None:
    """Continue the optimizer of the decisions from a state; None: from before its first step."""
    if state is None:
        term.optimizer = None
    elif (optimizer := optimizer_of(term)) is not None:
        try:
            optimizer.load_state_dict(state)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"this is no state of this plan, that of {term.method.room} does not fit the decisions: "
                "give what plan.state_dict() returned for the same model and methods"
            ) from error


def _replaced(old: nn.Parameter, new: nn.Parameter) -> bool:
    # FSDP2 shows whole ones in place of its sharded ones for a while.
    return old is not new and is_sharded(old) == is_sharded(new)
