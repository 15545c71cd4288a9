"""Checks that a module may be saved, reported on or exported."""

from __future__ import annotations

import copy
from itertools import chain
from typing import Any

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy

from paretorch.core.relaxation import PREFIX
from paretorch.errors import ConfigError
from paretorch.support.eval_mode import first_sentence


def plain(model: Any, who: str) -> nn.Module:
    """Return the network without a wrapper of torch.compile or of data parallelism, which change its names.

    Raises `ConfigError` for anything that is not a module, and for a network whose compression is not finished.

    Args:
        who: The function or argument that needs it, for the error.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{who} takes a module, not {type(model).__name__}")
    network: nn.Module = model
    while (inner := _wrapped(network)) is not None:
        network = inner
    if any(name.rpartition(".")[2] == f"{PREFIX}step" for name, _ in network.named_buffers()):
        raise ConfigError(
            f"{who} takes a finished network, and this one is still being compressed: plan.finalize() first"
        )
    if lazy := [name for name, tensor in chain(network.named_parameters(), network.named_buffers()) if is_lazy(tensor)]:
        raise ConfigError(
            f"{who} takes a network with weights, and {lazy[0]} has no shape yet: run it on a batch first"
        )
    return network


def copied(model: nn.Module, who: str) -> nn.Module:
    """Return a copy in eval mode."""
    try:
        return copy.deepcopy(model).eval()
    except Exception as error:  # a user's module may raise anything
        raise ConfigError(
            f"{who} works on a copy, and this {type(model).__name__} cannot be copied: {first_sentence(error)}"
        ) from error


def _wrapped(module: nn.Module) -> nn.Module | None:
    """Return the module inside a wrapper of torch.compile or of data parallelism; None if this is not a wrapper."""
    if isinstance(module, DataParallel | DistributedDataParallel):
        wrapped: nn.Module = module.module
        return wrapped
    return dict(module._modules.items()).get("_orig_mod")  # a scripted module's children are not in a dict
