"""Loading of optimizer states: of this version, of earlier ones, and of Adam, whose moments have the same names.

Version 1 holds `step`, `exp_avg` and `exp_avg_sq` per parameter (real, in `state_dtype`). A state without a version (of
torch.optim.Adam or AdamW, or of the author's AvaGrad, with its `gamma`) is read as version 0: these three entries and the
hyperparameters of its groups are taken, others are dropped. Options that it does not have, and those of how a step is
computed (`foreach`, `fused` …), stay as they are in the running optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from paretorch.errors import ConfigError

STATE_VERSION = 1
_MOMENT_KEYS = ("exp_avg", "exp_avg_sq")
_IMPLEMENTATION_OPTIONS = frozenset({"foreach", "fused", "capturable", "differentiable", "state_dtype", "seed"})
_DTYPES = {str(each).removeprefix("torch."): each for each in (torch.float32, torch.float64, torch.bfloat16)}
Group = dict[str, Any]


def dtypes_as_names(_: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Replace dtypes by their names: torch gathers only plain values into checkpoints of sharded networks."""
    names = {each: name for name, each in _DTYPES.items()}
    groups = [{**g, "state_dtype": names.get(g["state_dtype"], g["state_dtype"])} for g in state_dict["param_groups"]]
    return {**state_dict, "param_groups": groups}


def restore(
    optimizer: Optimizer,
    state_dict: dict[str, Any],
    load: Callable[[dict[str, Any]], None],
    check: Callable[[Group], None],
) -> None:
    """Load a state, and keep the precision in which the moments were saved. If it does not fit, nothing is changed.

    The user's own hooks run as usual: what is loaded is what their pre-hooks return, and their post-hooks see the result.

    Args:
        optimizer: to load into.
        state_dict: the state.
        load: torch's own `load_state_dict` of this optimizer.
        check: raises if the hyperparameters of a group cannot work.
    """
    found: list[tuple[Tensor, Any]] = []

    def prepare(_: Optimizer, given: dict[str, Any]) -> dict[str, Any]:
        pairs = _matching_groups(optimizer, given)
        groups = [_merge_group(current, saved, _loaded_keys(optimizer, given)) for current, saved in pairs]
        for group in groups:
            check(group)
        for current, saved in pairs:
            keys = zip(current["params"], saved["params"], strict=True)
            found.extend((param, given["state"].get(key)) for param, key in keys)
        for param, state in found:
            if state:
                _check_moments(param, state)
        return {**given, "param_groups": groups}

    def finish(_: Optimizer) -> None:
        for param, state in found:
            if state:
                optimizer.state[param] = _restored_state(param, state, optimizer.state[param])

    hooks = [
        optimizer.register_load_state_dict_pre_hook(prepare),  # after those of the user
        optimizer.register_load_state_dict_post_hook(finish, prepend=True),  # before those of the user
    ]
    try:
        load(state_dict)
    finally:
        for hook in hooks:
            hook.remove()


def _matching_groups(optimizer: Optimizer, state_dict: Mapping[str, Any]) -> list[tuple[Group, Group]]:
    """The groups of the optimizer, each with the group of the state that belongs to it."""
    if not {"state", "param_groups"} <= set(state_dict):
        raise ConfigError("This is not the state of an optimizer: give what optimizer.state_dict() returned")
    version = _version(state_dict)
    if version > STATE_VERSION:
        raise ConfigError(f"This state has version {version}; this version of paretorch reads up to {STATE_VERSION}")
    return _pair_groups(optimizer.param_groups, state_dict["param_groups"])


def _version(state_dict: Mapping[str, Any]) -> int:
    return max((group.get("version", 0) for group in state_dict["param_groups"]), default=0)


def _merge_group(current: Group, saved: Group, keys: set[str]) -> Group:
    kept = {key: value for key, value in current.items() if key != "params"}
    merged = {**kept, **{key: value for key, value in saved.items() if key in keys}, "version": STATE_VERSION}
    if isinstance(merged["state_dtype"], str):
        merged["state_dtype"] = _DTYPES.get(merged["state_dtype"], merged["state_dtype"])
    if isinstance(merged["betas"], list | tuple):  # Adam allows tensors
        merged["betas"] = tuple(b.item() if isinstance(b, Tensor) else b for b in merged["betas"])
    return merged


def _loaded_keys(optimizer: Optimizer, state_dict: Mapping[str, Any]) -> set[str]:
    """The entries of a group that are loaded: all of our own states (schedulers and users add some), else hyperparameters."""
    if _version(state_dict):
        return {key for group in state_dict["param_groups"] for key in group}
    return {*optimizer.defaults, "params", "initial_lr"} - _IMPLEMENTATION_OPTIONS


def _check_moments(param: Tensor, state: Mapping[str, Any]) -> None:
    for key in _MOMENT_KEYS:
        value = state.get(key)
        if not isinstance(value, Tensor):
            found = ", ".join(sorted(state))
            raise ConfigError(
                f"This state has {found} and no {key}: load one of Adam or a variant, or start with a new optimizer"
            )
        as_reals = param.is_complex() and not value.is_complex()
        if tuple(value.shape) != (*param.shape, *([2] if as_reals else [])):
            raise ConfigError(
                f"This state belongs to other parameters: {key} has the shape {tuple(value.shape)}, the parameter "
                f"{tuple(param.shape)}"
            )


def _restored_state(param: Tensor, saved: Mapping[str, Any], loaded: Mapping[str, Any]) -> dict[str, Any]:
    # torch casts floating point state to the dtype of its parameter: fp32 moments of a bf16 weight would lose digits.
    state: dict[str, Any] = {}
    for key in _MOMENT_KEYS:
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


def _pair_groups(current: list[Group], saved: list[Group]) -> list[tuple[Group, Group]]:
    if len(current) != len(saved):
        raise ConfigError(f"The state has {len(saved)} parameter groups and the optimizer has {len(current)}")
    for number, (own, other) in enumerate(zip(current, saved, strict=True)):
        if len(own["params"]) != len(other["params"]):
            raise ConfigError(
                f"Group {number} of the state has {len(other['params'])} parameters, that of the optimizer {len(own['params'])}"
            )
    return list(zip(current, saved, strict=True))
