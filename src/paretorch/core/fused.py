"""A whole step of the plan in one compiled function: on a GPU, one pass over memory instead of one an operation.

Price, update and clipping of a decision are elementwise, so a compiler makes them one kernel a layer. The layers of a
small network share launches; for a large one, where memory traffic is what costs, shared kernels are slower than one
each. Used on one GPU, with the methods' own optimizers, after their first step; everywhere else the same arithmetic
runs operation by operation.
"""

import math
import warnings
from typing import Any

import torch
from torch import Tensor

from paretorch.core.method import Term
from paretorch.core.relaxation import Chain
from paretorch.core.update import add_price, advance, clip_weights, gradients_of

_SMALL = 2**22  # decisions: up to here launches cost more than memory traffic
_PLAIN = {
    torch.optim.SGD: {"weight_decay": 0, "dampening": 0, "nesterov": False, "maximize": False},
    torch.optim.Adam: {"weight_decay": 0, "amsgrad": False, "maximize": False},
}


class FusedStep:
    """Compiles at its first call; `fits` says whether it may be used now."""

    def __init__(self) -> None:
        self._compiled: Any = None

    def fits(self, terms: list[Term]) -> bool:
        """Every optimizer is a plain SGD with momentum or Adam that has taken its first step."""
        return self._compiled is not False and all(_is_plain(term.optimizer) for term in terms)

    def __call__(self, terms: list[Term], step: Tensor, chains: list[Chain], weights: list[Tensor]) -> bool:
        """Take the step; False, and nothing done, where no compiler works."""
        if self._compiled is None:
            small = sum(d.numel() for term in terms for d in term.decisions()) <= _SMALL
            share = small and hasattr(torch._inductor.config, "combo_kernels")
            self._compiled = torch.compile(_step, dynamic=False, options={"combo_kernels": True} if share else {})
        gradients = [gradients_of(term) for term in terms]
        states = [_state(term) for term in terms]
        try:
            self._compiled(terms, gradients, states, step, chains, weights)
        except torch._dynamo.exc.TorchDynamoException as error:
            self._compiled = False
            warnings.warn(f"paretorch: torch.compile fails here, so steps take longer: {error}", stacklevel=3)
            return False
        return True

    def __deepcopy__(self, memo: dict[int, Any]) -> "FusedStep":
        return FusedStep()


def _is_plain(optimizer: torch.optim.Optimizer | None) -> bool:
    plain = _PLAIN.get(type(optimizer))
    if optimizer is None or plain is None or len(optimizer.param_groups) != 1:
        return False
    group = optimizer.param_groups[0]
    started = all(optimizer.state.get(p) for p in group["params"])
    return started and group.get("momentum", 1) != 0 and all(group[key] == value for key, value in plain.items())


def _state(term: Term) -> tuple[dict[str, Any], list[dict[str, Tensor]]]:
    assert term.optimizer is not None
    group = term.optimizer.param_groups[0]
    return dict(group, params=[p.data for p in group["params"]]), [term.optimizer.state[p] for p in group["params"]]


def _step(
    terms: list[Term],
    gradients: list[list[Tensor]],
    states: list[tuple[dict[str, Any], list[dict[str, Tensor]]]],
    step: Tensor,
    chains: list[Chain],
    weights: list[Tensor],
) -> None:
    for term, own in zip(terms, gradients, strict=True):
        add_price(term, terms, own)
    for term, (group, state) in zip(terms, states, strict=True):
        update = _adam if "betas" in group else _sgd
        for decision, parameter, one in zip(group["params"], term.decisions(), state, strict=True):
            assert parameter.grad is not None
            update(decision, parameter.grad, one, group)
    advance(terms, step)
    clip_weights(chains, weights)


def _sgd(s: Tensor, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> None:
    state["momentum_buffer"].mul_(group["momentum"]).add_(gradient)
    s.add_(state["momentum_buffer"], alpha=-group["lr"])


def _adam(s: Tensor, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> None:
    first, second = group["betas"]
    state["step"].add_(1)
    state["exp_avg"].lerp_(gradient, 1 - first)
    state["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
    rate = group["lr"] / (1 - torch.exp(state["step"] * math.log(first)))
    unbias = torch.sqrt(1 - torch.exp(state["step"] * math.log(second)))
    s.sub_(rate * state["exp_avg"] / (state["exp_avg_sq"].sqrt() / unbias + group["eps"]))
