"""The optimizers of a plan's decisions: torch's own, fused on one GPU, with drops of their rates; made at the first step, and continued from a state."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam as adam_step

from paretorch.core.method import Term
from paretorch.core.step.engine import OF_DECISIONS
from paretorch.errors import ConfigError
from paretorch.support.arithmetic import ON_CPU, row_blocks
from paretorch.support.checks import require_number
from paretorch.support.sharded import is_sharded, on_one_gpu, shard_state

_OF_DEVICES = ("fused", "foreach", "capturable")
_DROP = 0.1  # what a drop multiplies the rate by


def optimizer_of(term: Term) -> torch.optim.Optimizer | None:
    """The optimizer of the term's decisions; None where they are not trained."""
    if term.optimizer is not None and term.relaxations[0].decision.device != term.place:
        _renew(term)
    # Made at the first step: sharding after `compress` replaces the parameter objects.
    if term.optimizer is None:
        parameters, build = term.decisions(), term.method.optimizer
        term.trained, term.place = parameters, parameters[0].device
        term.optimizer = build(parameters) if build else term.method.decisions_optimizer(parameters, term.steps)
        if build and not isinstance(term.optimizer, torch.optim.Optimizer):
            raise ConfigError(f"optimizer: the function returned {term.optimizer!r}, which is no optimizer")
        if term.optimizer is not None:
            setattr(term.optimizer, OF_DECISIONS, True)
    return term.optimizer


def follow_decisions(term: Term) -> None:
    """Where other parameters have taken the place of the decisions: what their optimizer knows goes over to the new ones."""
    if term.optimizer is not None and any(map(_replaced, term.trained, term.decisions())):
        _renew(term)


def _renew(term: Term) -> None:
    """Another optimizer, for the decisions as they are and where they are now, with what the old one knows."""
    assert term.optimizer is not None
    known, term.optimizer = term.optimizer.state_dict(), None
    load_state(term, known)


def load_state(term: Term, state: dict[str, Any] | None) -> None:
    """Continue the optimizer of the decisions from a state; None: from before its first step."""
    if state is None:
        term.optimizer = None
    elif (optimizer := optimizer_of(term)) is not None:
        try:
            groups = [_as_here(*pair) for pair in zip(optimizer.param_groups, state["param_groups"], strict=True)]
            optimizer.load_state_dict({**state, "param_groups": groups})
            shard_state(optimizer)  # another number of ranks leaves whole tensors
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"this is no state of this plan, that of {term.method.kind} does not fit the decisions: "
                "give what plan.state_dict() returned for the same model and methods"
            ) from error


def _as_here(own: dict[str, Any], saved: dict[str, Any]) -> dict[str, Any]:
    """The options of a group, but for those that depend on the device: a state may come from another one."""
    lr = torch.as_tensor(saved["lr"]).to(own["lr"]) if isinstance(own["lr"], Tensor) else float(saved["lr"])
    return {**saved, **{name: own[name] for name in _OF_DEVICES if name in own and name in saved}, "lr": lr}


def _replaced(old: nn.Parameter, new: nn.Parameter) -> bool:
    # FSDP2 shows whole ones in place of its sharded ones for a while.
    return old is not new and is_sharded(old) == is_sharded(new)


def require_drops(drops: Sequence[float]) -> None:
    """Refuse what is no list of shares of the steps."""
    hint = "give shares of the steps, from 0 to 1, such as (0.5, 0.75)"
    if not isinstance(drops, list | tuple):
        raise ConfigError(f"drops={drops!r}: {hint}")
    for drop in drops:
        require_number("drops", drop, 0.0, 1.0, hint)


def drop_rate(optimizer: torch.optim.Optimizer | None, lr: float, done: Tensor, drops: Sequence[float]) -> None:
    """Give the optimizer the rate of this moment: `lr`, a tenth of it after each drop; done: the share of the steps so far."""
    if optimizer is None:
        return
    passed = torch.stack([(done >= drop).to(torch.float32) for drop in drops]).sum()
    rate = lr * torch.exp(passed * math.log(_DROP))
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].copy_(rate)
        else:
            group["lr"] = float(rate)


def sgd(
    parameters: list[nn.Parameter], lr: float, momentum: float, weight_decay: float = 0.0, *, drops: bool = False
) -> torch.optim.Optimizer:
    """SGD with momentum; drops: its rate changes, so that on a GPU, where a CUDA graph may hold its step, it is a tensor."""
    fused = on_one_gpu(parameters)
    return torch.optim.SGD(
        parameters,
        lr=torch.full((), lr, dtype=torch.float32, device=parameters[0].device) if drops and fused else lr,
        momentum=momentum,
        weight_decay=weight_decay,
        fused=fused,
        foreach=not fused and _are_alike(parameters),
    )


def adam(parameters: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """Adam; on a GPU such that a CUDA graph can hold its step."""
    fused = on_one_gpu(parameters)
    foreach = not fused and _are_alike(parameters)
    on_cpu = all(one.device.type == "cpu" and not is_sharded(one) for one in parameters)
    if on_cpu and max(one.numel() for one in parameters) > ON_CPU:
        return _BlockedAdam(parameters, lr=lr)
    return torch.optim.Adam(parameters, lr=lr, fused=fused, foreach=foreach, capturable=parameters[0].is_cuda)


class _BlockedAdam(torch.optim.Adam):
    """Adam that steps some rows at a time: its temporary tensors are small, the results are the same."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            found: tuple[list[Tensor], ...] = ([], [], [], [], [], [])
            self._init_group(group, *found)
            beta1, beta2 = group["betas"]
            for parameter, gradient, mean, square, count in zip(*found[:4], found[5], strict=True):
                for rows in row_blocks(tuple(parameter.shape), ON_CPU):
                    own = [one.detach()[rows] for one in (parameter, gradient, mean, square)]
                    adam_step(
                        [own[0]],
                        [own[1]],
                        [own[2]],
                        [own[3]],
                        [],
                        [count.clone()],  # which the call counts up
                        foreach=True,
                        amsgrad=False,
                        beta1=beta1,
                        beta2=beta2,
                        lr=group["lr"],
                        weight_decay=group["weight_decay"],
                        eps=group["eps"],
                        maximize=group["maximize"],
                    )
                count += 1


def _are_alike(parameters: list[nn.Parameter]) -> bool:
    """Whether all are sharded, or none: multi-tensor operations take no mixture."""
    return len({is_sharded(one) for one in parameters}) == 1
