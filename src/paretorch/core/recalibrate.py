"""Batch-norm statistics, estimated afresh for the rounded network."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from paretorch.errors import ConfigError


def recalibrate_norms(model: nn.Module, batches: Iterable[Any]) -> None:
    """Average the batch statistics over the given inputs (a tensor, or a tuple that begins with it, a batch)."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    if not norms:
        return
    modes = {module: module.training for module in model.modules()}
    momenta = {norm: norm.momentum for norm in norms}
    model.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain average over all batches
        norm.train()
    seen = False
    with torch.no_grad():
        for batch in batches:
            model(batch[0] if isinstance(batch, (tuple, list)) else batch)
            seen = True
    for module, mode in modes.items():
        module.training = mode
    for norm, momentum in momenta.items():
        norm.momentum = momentum
    if not seen:
        raise ConfigError("recalibrate: the loader gave no batch")
