"""Optimizers by name, set up so that their step can be captured in a CUDA graph when one is wanted."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from paretorch.optim.peers import PEERS, RATE_SHARE, peer
from paretorch.support.sharded import shard_state
from paretorch.training.recipe import OptimizerRecipe

UNCAPTURED = frozenset(PEERS)
_COUNTED = ("step", "weight_sum", "lr_max", "train_mode")  # what some optimizers count per group
_MOMENTS = ("momentum_buffer", "exp_avg", "max_exp_avg_sq")  # one number per weight, in every optimizer that has them


def dense_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """All trainable parameters in one group, as `Plan.param_groups` gives them for a compressed model."""
    return [{"params": [weight for weight in model.parameters() if weight.requires_grad], "weight_decay": weight_decay}]


def build(recipe: OptimizerRecipe, groups: Iterable[dict[str, Any]], rate: float | Tensor) -> torch.optim.Optimizer:
    """The optimizer of a recipe. A tensor as rate means that the step will be captured in a CUDA graph."""
    groups = [group for group in groups if group["params"]]
    captured = isinstance(rate, Tensor)
    if recipe.name == "sgd":
        nesterov = recipe.nesterov and recipe.momentum > 0
        fused = True if captured else None
        return torch.optim.SGD(groups, lr=rate, momentum=recipe.momentum, nesterov=nesterov, fused=fused)
    options: dict[str, Any] = {"lr": rate, "betas": recipe.betas, "capturable": captured}
    if recipe.eps is not None:
        options["eps"] = recipe.eps
    if recipe.name in ("adam", "amsgrad", "adamw"):
        kind = torch.optim.AdamW if recipe.name == "adamw" else torch.optim.Adam
        return kind(groups, amsgrad=recipe.name == "amsgrad", fused=True if captured else None, **options)
    if recipe.name == "radam":
        return torch.optim.RAdam(groups, **options)
    if recipe.name in PEERS:
        return peer(recipe.name, groups, options)
    from paretorch import optim

    kinds = {"avagrad": optim.AvaGrad, "avagradw": optim.AvaGradW, "delayed-adam": optim.DelayedAdam}
    return kinds[recipe.name](groups, **options)


def set_rate(optimizer: torch.optim.Optimizer, rate: float | Tensor) -> None:
    """Give every group this learning rate, or its share of it."""
    for group in optimizer.param_groups:
        group["lr"] = group[RATE_SHARE] * rate if RATE_SHARE in group else rate


def _require_shapes(optimizer: torch.optim.Optimizer) -> None:
    """Raise ValueError for moments of another shape than their weight, which torch would notice at the next step only."""
    for group in optimizer.param_groups:
        for weight in group["params"]:
            for name, value in optimizer.state.get(weight, {}).items():
                if name in _MOMENTS and value is not None and getattr(value, "shape", None) != weight.shape:
                    raise ValueError(f"{name} has another shape than its weight")


def load_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load moments and counters, keep this optimizer's own settings (it may run on another device now)."""
    settings = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    for own, saved in zip(settings, state["param_groups"], strict=True):
        own.update({name: saved[name] for name in _COUNTED if name in saved})
    groups = [{**own, "params": saved["params"]} for own, saved in zip(settings, state["param_groups"], strict=True)]
    optimizer.load_state_dict({"state": state["state"], "param_groups": groups})
    _require_shapes(optimizer)
    shard_state(optimizer)
    # Loading copies; a rate that a captured step reads must stay the very tensor that is written to.
    for group, own in zip(optimizer.param_groups, settings, strict=True):
        group.update(own)


def clip_gradients(optimizer: torch.optim.Optimizer, norm: float) -> RemovableHandle:
    """From now on, scale the gradient of all weights together down to `norm` before each step.

    The optimizer holds the weights alone: the plan's decisions are not clipped. Nothing is read on the host, so that
    the step can be captured. `remove()` of what is returned ends it.
    """

    def clip(stepping: torch.optim.Optimizer, args: Any, options: Any) -> None:
        weights = [weight for group in stepping.param_groups for weight in group["params"]]
        torch.nn.utils.clip_grad_norm_(weights, norm)

    return optimizer.register_step_pre_hook(clip)
