"""A step of the plan in two compiled functions: on a GPU, one pass over memory instead of one an operation.

Price, update and clipping of a decision are elementwise, so a compiler makes them one kernel a layer. The layers of a
small network share launches; for a large one, where memory traffic is what costs, shared kernels are slower than one
each. Schedules and steering read a sample of what was written, the same few weights of any network, so there layers
always share launches; in one function with the writing they would make the compiler keep a second copy of every
decision. Used on one GPU, with the methods' own optimizers, after their first step; everywhere else the same
arithmetic runs operation by operation.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from paretorch.core.method import Term
from paretorch.core.relaxation import Chain
from paretorch.core.step.update import add_price, advance, clip_weights, gradients_of
from paretorch.support.dynamo import own_code
from paretorch.support.warn import warn

_State = dict[str, Tensor]
_SMALL = 2**22  # decisions: up to here launches cost more than memory traffic
_PLAIN: dict[type, dict[str, Any]] = {
    torch.optim.SGD: {"weight_decay": 0, "dampening": 0, "maximize": False},
    torch.optim.Adam: {"weight_decay": 0, "amsgrad": False, "maximize": False},
}


class FusedStep:
    """Compiles at its first call; `fits` says whether it may be used now."""

    def __init__(self) -> None:
        self._compiled: Any = None
        self._advance: Any = None

    def fits(self, terms: list[Term]) -> bool:
        """Every optimizer, where there is one, is a plain SGD with momentum or Adam that has taken its first step."""
        optimizers = [term.optimizer for term in terms if term.optimizer is not None]
        return self._compiled is not False and all(_is_plain(optimizer) for optimizer in optimizers)

    def __call__(self, terms: list[Term], step: Tensor, chains: list[Chain], weights: list[Tensor]) -> bool:
        """Take the step; False, and nothing done, where no compiler works."""
        if self._compiled is None:
            small = sum(d.numel() for term in terms for d in term.decisions()) <= _SMALL
            shared: dict[str, Any] = {"combo_kernels": True} if hasattr(torch._inductor.config, "combo_kernels") else {}
            self._compiled = torch.compile(own_code(_update), dynamic=False, options=shared if small else {})
            self._advance = torch.compile(own_code(advance), dynamic=False, options=shared)
        trained = [term for term in terms if term.optimizer is not None]
        places = [_places(term) for term in trained]
        states = [_state(term) for term in trained]
        try:
            self._compiled(terms, trained, places, states, chains, weights)
        except torch._dynamo.exc.TorchDynamoException as error:
            self._compiled = False
            warn(f"torch.compile fails here, so steps take longer: {error}")
            return False
        self._advance(terms, step)
        return True

    def __deepcopy__(self, memo: dict[int, Any]) -> "FusedStep":
        return FusedStep()


def _is_plain(optimizer: torch.optim.Optimizer) -> bool:
    plain = _PLAIN.get(type(optimizer))
    if plain is None or len(optimizer.param_groups) != 1:
        return False
    group = optimizer.param_groups[0]
    started = all(optimizer.state.get(p) for p in group["params"])
    return started and group.get("momentum", 1) != 0 and all(group[key] == value for key, value in plain.items())


def _state(term: Term) -> tuple[dict[str, Any], list[_State]]:
    # Without the parameters: reached by two ways, the compiler would copy them.
    assert term.optimizer is not None
    group = term.optimizer.param_groups[0]
    options = {name: value for name, value in group.items() if name != "params"}
    return options, [term.optimizer.state[p] for p in term.decisions()]


def _places(term: Term) -> list[int]:
    """Which of the term's decisions each relaxation reads."""
    gradients_of(term)  # every decision has one
    index = {id(decision): i for i, decision in enumerate(term.decisions())}
    return [index[id(relaxation.decision)] for relaxation in term.relaxations]


def _update(
    terms: list[Term],
    trained: list[Term],
    places: list[list[int]],
    states: list[tuple[dict[str, Any], list[_State]]],
    chains: list[Chain],
    weights: list[Tensor],
) -> None:
    # Copies that are never made: fused into the update, the price is not written back to memory.
    gradients = [[d.grad.clone() for d in term.decisions() if d.grad is not None] for term in trained]
    for term, own, place in zip(trained, gradients, places, strict=True):
        add_price(term, terms, [own[i] for i in place])
    for term, own, (group, state) in zip(trained, gradients, states, strict=True):
        update = _adam if "betas" in group else _sgd
        update(term.decisions(), own, state, group)
    clip_weights(chains, weights)


def _sgd(decisions: list[nn.Parameter], gradients: list[Tensor], state: list[_State], group: dict[str, Any]) -> None:
    for s, gradient, one in zip(decisions, gradients, state, strict=True):
        run = one["momentum_buffer"].mul_(group["momentum"]).add_(gradient)
        s.sub_(group["lr"] * (gradient + group["momentum"] * run if group["nesterov"] else run))


def _adam(decisions: list[nn.Parameter], gradients: list[Tensor], state: list[_State], group: dict[str, Any]) -> None:
    first, second = group["betas"]
    torch._foreach_add_([one["step"] for one in state], 1)
    step = state[0]["step"]  # all decisions take all steps
    rate = group["lr"] / (1 - torch.exp(step * math.log(first)))
    unbias = torch.rsqrt(1 - torch.exp(step * math.log(second)))
    for s, gradient, one in zip(decisions, gradients, state, strict=True):
        one["exp_avg"].lerp_(gradient, 1 - first)
        one["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        s.sub_(rate * one["exp_avg"] / (one["exp_avg_sq"].sqrt() * unbias + group["eps"]))
