"""Loading of optimizer states: of this version, of earlier ones, and of Adam, whose moments have the same names.

Version 1 keeps `step`, `exp_avg` and `exp_avg_sq` per parameter (real, in `state_dtype`). What carries no version (the
state of torch.optim.Adam or AdamW, or of the author's AvaGrad, with its `gamma`) is read as version 0: the three
entries and the numbers of its groups are taken, others are dropped, and what it does not know, or how a step is computed
(`foreach`, `fused` …), stays as the running optimizer has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from paretorch.errors import ConfigError

STATE_VERSION = 1
_MOMENTS = ("exp_avg", "exp_avg_sq")
_HOW = frozenset({"foreach", "fused", "capturable", "differentiable", "state_dtype", "seed"})
_DTYPES = {str(each).removeprefix("torch."): each for each in (torch.float32, torch.float64, torch.bfloat16)}
Group = dict[str, Any]


def plain(_: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """With the names of dtypes in place of these: checkpoints of sharded networks are gathered of plain values alone."""
    names = {each: name for name, each in _DTYPES.items()}
    groups = [{**g, "state_dtype": names.get(g["state_dtype"], g["state_dtype"])} for g in state_dict["param_groups"]]
    return {**state_dict, "param_groups": groups}


def restore(
    optimizer: Optimizer,
    state_dict: dict[str, Any],
    load: Callable[[dict[str, Any]], None],
    check: Callable[[Group], None],
) -> None:
    """Load `state_dict` by `load`, and give the moments back the precision in which they were saved.

    Nothing is changed where it does not fit; `check` refuses groups whose numbers cannot work. What is loaded is what the
    hooks of the user make of `state_dict`, and those that follow see the result.
    """
    found: list[tuple[Tensor, Any]] = []

    def prepare(_: Optimizer, given: dict[str, Any]) -> dict[str, Any]:
        pairs = _checked(optimizer, given)
        groups = [_merged(current, saved, _taken(optimizer, given)) for current, saved in pairs]
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
                optimizer.state[param] = _moments(param, state, optimizer.state[param])

    last = optimizer.register_load_state_dict_pre_hook(prepare)
    first = optimizer.register_load_state_dict_post_hook(finish, prepend=True)
    try:
        load(state_dict)
    finally:
        last.remove()
        first.remove()


def _checked(optimizer: Optimizer, state_dict: Mapping[str, Any]) -> list[tuple[Group, Group]]:
    """The groups of the optimizer, each with the one of the state that belongs to it."""
    if not {"state", "param_groups"} <= set(state_dict):
        raise ConfigError("This is no state of an optimizer: give what optimizer.state_dict() returned.")
    newest = _newest(state_dict)
    if newest > STATE_VERSION:
        raise ConfigError(f"This state has version {newest}, and {STATE_VERSION} is the newest known here.")
    return _paired(optimizer.param_groups, state_dict["param_groups"])


def _newest(state_dict: Mapping[str, Any]) -> int:
    return max((group.get("version", 0) for group in state_dict["param_groups"]), default=0)


def _merged(current: Group, saved: Group, taken: set[str]) -> Group:
    kept = {key: value for key, value in current.items() if key != "params"}
    merged = {**kept, **{key: value for key, value in saved.items() if key in taken}, "version": STATE_VERSION}
    if isinstance(merged["state_dtype"], str):
        merged["state_dtype"] = _DTYPES.get(merged["state_dtype"], merged["state_dtype"])
    if isinstance(merged["betas"], list | tuple):  # Adam allows tensors
        merged["betas"] = tuple(b.item() if isinstance(b, Tensor) else b for b in merged["betas"])
    return merged


def _taken(optimizer: Optimizer, state_dict: Mapping[str, Any]) -> set[str]:
    """What is taken of a foreign group: its numbers. Of our own all is, since schedulers and users keep entries there."""
    if _newest(state_dict):
        return {key for group in state_dict["param_groups"] for key in group}
    return {*optimizer.defaults, "params", "initial_lr"} - _HOW


def _check_moments(param: Tensor, state: Mapping[str, Any]) -> None:
    for key in _MOMENTS:
        value = state.get(key)
        if not isinstance(value, Tensor):
            found = ", ".join(sorted(state))
            raise ConfigError(
                f"This state has {found} and no {key}: load one of Adam or its kin, or begin with a fresh optimizer."
            )
        pairs = param.is_complex() and not value.is_complex()
        if tuple(value.shape) != (*param.shape, *([2] if pairs else [])):
            raise ConfigError(
                f"This state belongs to other parameters: {key} has the shape {tuple(value.shape)}, the parameter "
                f"{tuple(param.shape)}."
            )


def _moments(param: Tensor, saved: Mapping[str, Any], loaded: Mapping[str, Any]) -> dict[str, Any]:
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


def _paired(current: list[Group], saved: list[Group]) -> list[tuple[Group, Group]]:
    if len(current) != len(saved):
        raise ConfigError(f"The state has {len(saved)} parameter groups and the optimizer {len(current)}.")
    for number, (own, other) in enumerate(zip(current, saved, strict=True)):
        if len(own["params"]) != len(other["params"]):
            raise ConfigError(
                f"Group {number} of the state has {len(other['params'])} parameters, and {len(own['params'])} here."
            )
    return list(zip(current, saved, strict=True))
