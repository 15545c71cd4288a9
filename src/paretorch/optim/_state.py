"""Loading of optimizer states: of this version, of earlier ones, and of Adam, whose moments have the same names.

Version 1 keeps `step`, `exp_avg` and `exp_avg_sq` per parameter (real, in `state_dtype`). What carries no version (the
state of torch.optim.Adam or AdamW, or of the author's AvaGrad, with its `gamma`) is read as version 0: the three
entries are taken, others are dropped, and options that it does not know keep the values of the running optimizer.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from paretorch.errors import ConfigError

STATE_VERSION = 1
_MOMENTS = ("exp_avg", "exp_avg_sq")


def restore(optimizer: Optimizer, state_dict: dict[str, Any], load: Callable[[dict[str, Any]], None]) -> None:
    """Load `state_dict` by `load`, then give the moments back the precision in which they were saved."""
    versions = {group.get("version", 0) for group in state_dict["param_groups"]}
    if versions and max(versions) > STATE_VERSION:
        raise ConfigError(f"This state has version {max(versions)}, and {STATE_VERSION} is the newest known here.")
    defaults = optimizer.defaults
    groups = [
        {
            **{key: value for key, value in current.items() if key != "params"},
            **{key: value for key, value in saved.items() if key in defaults or key in ("params", "initial_lr")},
            "version": STATE_VERSION,
        }
        for current, saved in _paired(optimizer.param_groups, state_dict["param_groups"])
    ]
    load({**state_dict, "param_groups": groups})
    ids = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
    params = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    for key, param in zip(ids, params, strict=True):
        saved = state_dict["state"].get(key)
        if saved:
            optimizer.state[param] = _moments(param, saved, optimizer.state[param])


def _moments(param: Tensor, saved: dict[str, Any], loaded: dict[str, Any]) -> dict[str, Any]:
    # torch casts floating point state to the dtype of its parameter: fp32 moments of a bf16 weight would be cut.
    state: dict[str, Any] = {}
    for key in _MOMENTS:
        value = saved[key]
        if value.is_complex():
            value = torch.view_as_real(value)
        wide = param.dtype in (torch.float64, torch.complex128)
        dtype = value.dtype if wide or value.dtype == torch.bfloat16 else torch.float32
        if dtype != loaded[key].dtype or value.dim() != loaded[key].dim():
            state[key] = value.detach().to(param.device, dtype, copy=True)
        else:
            state[key] = loaded[key]
    step = saved.get("step", 0)
    state["step"] = torch.tensor(float(step), dtype=torch.float32)
    return state


def _paired(current: list[dict[str, Any]], saved: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    if len(current) != len(saved):
        raise ConfigError(f"The state has {len(saved)} parameter groups and the optimizer {len(current)}.")
    return list(zip(current, saved, strict=True))
