"""Optimizers that AvaGrad is compared with and torch does not have; they come from the package pytorch_optimizer.

AdaBound, AdaBelief and AdaShift are those of thesis chapter 6, with λw added to the gradient as in Adam. Muon (Jordan, 2024), SOAP
(Vyas et al., 2024) and Schedule-Free AdamW (Defazio et al., 2024) came later, and decay weights in their own ways. torch's own Muon takes
matrices alone; the package's also takes convolutions, as matrices of one row per output channel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from paretorch.errors import ConfigError, MissingExtraError

PEERS = {
    "adabound": "AdaBound",
    "adabelief": "AdaBelief",
    "adashift": "AdaShift",
    "muon": "Muon",
    "soap": "SOAP",
    "schedule-free": "ScheduleFreeAdamW",
}
RATE_SHARE = "rate_share"
"""In a parameter group: what its learning rate is a multiple of."""
_DECAY_IN_GRADIENT = ("adabound", "adabelief")
_QUEUE_KEY = "grad_queue"
_ADAM_SHARE = 0.05  # of Muon's rate: that of Adam on biases and norms, 0.001 for 0.02


def peer(name: str, groups: list[dict[str, Any]], options: Mapping[str, Any]) -> Optimizer:
    """Build one of `PEERS`, with a state of plain values for checkpoints.

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
    if name == "muon":
        groups, options = _matrices_apart(groups, options), {"lr": options["lr"]}
    decay = {"weight_decouple": False} if name in _DECAY_IN_GRADIENT else {}
    optimizer: Optimizer = getattr(pytorch_optimizer, PEERS[name])(groups, **decay, **options)
    if name == "adashift":
        optimizer.register_step_pre_hook(_add_decay)  # AdaShift has no weight decay
        optimizer.register_state_dict_post_hook(_queues_as_lists)
        optimizer.register_step_pre_hook(_lists_as_queues)
    return optimizer


def set_mode(optimizer: Optimizer, *, training: bool) -> None:
    """Before training, or before evaluation: a schedule-free optimizer trains at one point and evaluates at another."""
    switch = getattr(optimizer, "train" if training else "eval", None)
    if switch is not None:
        switch()


def _matrices_apart(groups: list[dict[str, Any]], options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Matrices and convolutions by Muon; vectors by Adam, at a share of the rate."""
    found: list[dict[str, Any]] = []
    for group in groups:
        wide = [weight for weight in group["params"] if weight.dim() > 1]
        rest = [weight for weight in group["params"] if weight.dim() <= 1]
        own = {key: value for key, value in group.items() if key != "params"}
        adam = {"betas": options.get("betas", (0.9, 0.999)), "eps": options.get("eps", 1e-8), RATE_SHARE: _ADAM_SHARE}
        if wide:
            found.append({**own, "params": wide, "use_muon": True})
        if rest:
            found.append({**own, "params": rest, "use_muon": False, "lr": _ADAM_SHARE * options["lr"], **adam})
    return found


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
