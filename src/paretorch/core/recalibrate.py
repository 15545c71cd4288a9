"""Batch-norm statistics, estimated afresh for the rounded network."""

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from paretorch.core.looking import in_eval
from paretorch.errors import ConfigError


def recalibrate_norms(model: nn.Module, batches: Iterable[Any]) -> None:
    """Average the batch statistics over the given inputs (a tensor, or a tuple that begins with it, a batch)."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    if not norms:
        return
    momenta = {norm: norm.momentum for norm in norms}
    seen = False
    try:
        with in_eval(model):
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None  # a plain average over all batches
                norm.train()
            for batch in batches:
                model(batch[0] if isinstance(batch, (tuple, list)) else batch)
                seen = True
    finally:
        for norm, momentum in momenta.items():
            norm.momentum = momentum
    if not seen:
        raise ConfigError("recalibrate: the loader gave no batch")
