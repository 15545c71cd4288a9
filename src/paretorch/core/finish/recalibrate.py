"""Batch-norm statistics, estimated afresh for weights that were rounded or folded."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from paretorch.errors import ConfigError
from paretorch.support.eval_mode import in_eval
from paretorch.support.inputs import batch_call


def recalibrate_norms(model: nn.Module, batches: Iterable[Any]) -> None:
    """Average the batch statistics over the given batches: tensors, tuples that begin with the inputs, or dicts of arguments.

    `batch_call` says which parts of a batch are inputs. They may be anywhere, as a data loader gives them: each goes to
    where the model is. If one fails, or there is none, the statistics are what they were.
    """
    if isinstance(batches, Tensor) or not any(hasattr(batches, name) for name in ("__iter__", "__getitem__")):
        given = "one tensor" if isinstance(batches, Tensor) else repr(batches)
        raise ConfigError(f"recalibrate: give batches, such as a data loader or a list of tensors, not {given}")
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    if not norms:
        return
    place = norms[0].get_buffer("running_mean").device
    momenta = {norm: norm.momentum for norm in norms}
    before = [(buffer, buffer.clone()) for norm in norms for buffer in norm.buffers()]
    seen = False
    try:
        with in_eval(model):
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None  # a plain average over all batches
                norm.train()
            for batch in batches:
                batch_call(model, batch).to(place)(model)
                seen = True
            if not seen:
                raise ConfigError("recalibrate: the loader gave no batch")
    except BaseException:
        for buffer, value in before:
            buffer.copy_(value)
        raise
    finally:
        for norm, momentum in momenta.items():
            norm.momentum = momentum
