"""The rivals of chapter 6 that torch does not have, from the package pytorch_optimizer: AdaBound, AdaBelief, AdaShift."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from paretorch.errors import ConfigError, MissingExtraError

PEERS = {"adabound": "AdaBound", "adabelief": "AdaBelief", "adashift": "AdaShift"}
_QUEUE = "grad_queue"


def peer(name: str, groups: list[dict[str, Any]], options: Mapping[str, Any]) -> Optimizer:
    """One of `PEERS` with λw in the gradient, as for Adam, and with a state that a checkpoint can hold."""
    options = dict(options)
    if options.pop("capturable", False):
        raise ConfigError(f"A step of {name} cannot be captured in a CUDA graph: add --no-graph.")
    try:
        import pytorch_optimizer
    except ImportError as error:
        raise MissingExtraError(f"{name} needs pytorch_optimizer: pip install 'paretorch[rivals]'.") from error
    decay = {} if name == "adashift" else {"weight_decouple": False}
    made: Optimizer = getattr(pytorch_optimizer, PEERS[name])(groups, **decay, **options)
    if name == "adashift":
        made.register_step_pre_hook(_add_decay)  # it has none of its own
        made.register_state_dict_post_hook(_queues_as_lists)
        made.register_step_pre_hook(_lists_as_queues)
    return made


def _add_decay(optimizer: Optimizer, args: Any, options: Any) -> None:
    for group in optimizer.param_groups:
        found = [weight for weight in group["params"] if weight.grad is not None]
        if found and group.get("weight_decay"):
            with torch.no_grad():
                torch._foreach_add_([weight.grad for weight in found], found, alpha=group["weight_decay"])


def _queues_as_lists(optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Queues are no plain data, which is all that a safe checkpoint may hold."""
    plain = {key: {**state, _QUEUE: list(state[_QUEUE])} for key, state in state_dict["state"].items()}
    return {**state_dict, "state": plain}


def _lists_as_queues(optimizer: Optimizer, args: Any, options: Any) -> None:
    for group in optimizer.param_groups:
        for weight in group["params"]:
            state = optimizer.state.get(weight, {})
            if isinstance(state.get(_QUEUE), list):
                state[_QUEUE] = deque(state[_QUEUE], maxlen=group["keep_num"])
