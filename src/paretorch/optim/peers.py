"""Optimizers that thesis chapter 6 compares with and torch does not have: AdaBound, AdaBelief, AdaShift.

They come from the package pytorch_optimizer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from paretorch.errors import ConfigError, MissingExtraError

PEERS = {"adabound": "AdaBound", "adabelief": "AdaBelief", "adashift": "AdaShift"}
_QUEUE_KEY = "grad_queue"


def peer(name: str, groups: list[dict[str, Any]], options: Mapping[str, Any]) -> Optimizer:
    """Build one of `PEERS`, with λw added to the gradient as in Adam, and with a state of plain values for checkpoints.

    Args:
        name: a key of `PEERS`.
        groups: parameter groups.
        options: of the optimizer, as recipes give them.
    """
    options = dict(options)
    if options.pop("capturable", False):
        raise ConfigError(f"A step of {name} cannot be captured in a CUDA graph: add --no-graph")
    try:
        import pytorch_optimizer
    except ImportError as error:
        raise MissingExtraError(f"{name} needs pytorch_optimizer: pip install 'paretorch[rivals]'") from error
    decay = {} if name == "adashift" else {"weight_decouple": False}
    optimizer: Optimizer = getattr(pytorch_optimizer, PEERS[name])(groups, **decay, **options)
    if name == "adashift":
        optimizer.register_step_pre_hook(_add_decay)  # AdaShift has no weight decay
        optimizer.register_state_dict_post_hook(_queues_as_lists)
        optimizer.register_step_pre_hook(_lists_as_queues)
    return optimizer


def _add_decay(optimizer: Optimizer, args: Any, options: Any) -> None:
    for group in optimizer.param_groups:
        found = [weight for weight in group["params"] if weight.grad is not None]
        if found and group.get("weight_decay"):
            with torch.no_grad():
                torch._foreach_add_([weight.grad for weight in found], found, alpha=group["weight_decay"])


def _queues_as_lists(optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Replace queues by lists: a safe checkpoint holds plain values only."""
    plain = {key: {**state, _QUEUE_KEY: list(state[_QUEUE_KEY])} for key, state in state_dict["state"].items()}
    return {**state_dict, "state": plain}


def _lists_as_queues(optimizer: Optimizer, args: Any, options: Any) -> None:
    for group in optimizer.param_groups:
        for weight in group["params"]:
            state = optimizer.state.get(weight, {})
            if isinstance(state.get(_QUEUE_KEY), list):
                state[_QUEUE_KEY] = deque(state[_QUEUE_KEY], maxlen=group["keep_num"])
