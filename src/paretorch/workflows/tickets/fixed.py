"""A mask that is given and stays: what tickets are retrained with, and what IMP trains with in every round.

W = θ ⊙ m
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from paretorch.core.attach.sites import Selector, Site
from paretorch.core.compress import compress
from paretorch.core.groups import Grouping
from paretorch.core.method import Term
from paretorch.core.plan import Plan
from paretorch.methods.sparsity.rivals.following import Following
from paretorch.methods.sparsity.rivals.rival import Rival
from paretorch.workflows.tickets.state import Decisions, Masks, write_decisions


@dataclass(frozen=True, kw_only=True)
class FixedMask(Rival):
    """Keep the weights with s ≥ 0; nothing is trained, and at first everything is kept."""

    takes_complex: ClassVar[bool] = True

    def relax(self, site: Site, grouping: Grouping, seed: int, together: set[str]) -> Following:
        return Following(grouping, site.weight.device)

    def round(self, term: Term, factor: float) -> None:
        """The mask is rounded already."""


def as_decisions(masks: Masks) -> Decisions:
    """The state of fixed masks: s = 1 for what is kept, −1 for what is not."""
    return {name: {"s": torch.where(mask, 1.0, -1.0)} for name, mask in masks.items()}


def hold(model: nn.Module, masks: Masks, exclude: Selector, steps: int) -> Plan:
    """Fix these masks on the model; the plan is hardened, so that its steps cost nothing."""
    plan = compress(model, FixedMask(exclude=exclude), steps=steps)
    write_decisions(model, as_decisions(masks))
    plan.harden()
    return plan
