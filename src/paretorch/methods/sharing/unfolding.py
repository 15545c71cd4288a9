"""Opening a network that shares: its layers with weights of their own, beside the banks that these came from.

Of a network with a plan, that is `finalize`. One without was folded before, or loaded: what an exact fold stores, and so
the file of a run that shares, are templates and coefficients wherever templates are fewer than layers, which is all that
folding further needs.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from paretorch.core.plan import plans_of
from paretorch.edits import EDITS, Share, edits_of
from paretorch.edits.share import unshare
from paretorch.errors import DivergenceError
from paretorch.methods.sharing.layers import Bank, read_banks

_FEW = 0.25  # of the weights: as many values or fewer are a grid
_ZEROS = 0.01
_SEEN = 2**17  # weights of a template, about: to sort millions takes seconds


def opened(network: nn.Module) -> tuple[nn.Module, list[Bank]]:
    """The network, changed in place, and what its layers are mixed from."""
    plan = next(plans_of(network), None)
    if plan is not None:
        plan.harden()
    banks = read_banks(network)
    _check_finite(banks)
    return (plan.finalize(), banks) if plan is not None else (network, _unfold(network, banks))


def _check_finite(banks: Sequence[Bank]) -> None:
    for bank in banks:
        for layer, row in zip(bank.layers, bank.rows @ bank.gram.to(bank.rows), strict=True):
            if not bool(torch.isfinite(row).all()):
                raise DivergenceError(f"{layer} is not finite, so training has diverged: fold an earlier checkpoint")


def _unfold(network: nn.Module, banks: Sequence[Bank]) -> list[Bank]:
    """Give every layer its own weight; the banks, with what their templates look like in place of what acts on them."""
    kept = [replace(bank, relaxed=any(_is_coded(template) for template in bank.templates)) for bank in banks]
    unshare(network)
    network.__dict__[EDITS] = [edit for edit in edits_of(network) if not isinstance(edit, Share)]
    network.__dict__.pop("paretorch_folding", None)
    return kept


def _is_coded(template: Tensor) -> bool:
    """Whether a template is pruned or quantized, so that its file is small, and that of a mixture would not be."""
    some = template.flatten()[:: max(1, template.numel() // _SEEN)]
    if float((some == 0).double().mean()) > _ZEROS:
        return True
    finest = 2 / torch.finfo(some.dtype).eps  # values of a grid with as many bits as the dtype has digits
    return len(some.unique()) <= min(_FEW * some.numel(), finest)
