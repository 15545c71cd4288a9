"""Whether rounding will be felt: how far it moves the weights, against what they were trained with."""

import math
from collections.abc import Sequence

import torch

from paretorch.core.method import Term
from paretorch.core.relaxation import PREFIX
from paretorch.errors import UndecidedWarning
from paretorch.methods.precision.noisy import Precision
from paretorch.support.sharded import whole
from paretorch.support.warn import warn


def step_of(term: Term) -> int:
    """The step of the plan; reads it from the device."""
    return int(getattr(term.root, f"{PREFIX}step"))


def warn_felt(term: Term, why: str) -> None:
    """Say that rounding will be felt."""
    warn(
        f"harden at step {step_of(term)} of {term.steps}: {why}, so rounding will be felt; train on to the target, fine-tune "
        "after harden, or look first with plan.hardened()",
        UndecidedWarning,
    )


def noise_size(term: Term, members: Sequence[Precision]) -> float:
    """The root mean square of the noise of all weights: 1/√3 of how far it reaches."""
    squares = 0.0
    for index, r in enumerate(members):
        reach = r.reach(whole(term.latent(index)), r.grid(whole(r.decision)))
        squares += float(reach.expand(r.grouping.shape).square().sum()) / 3.0
    return math.sqrt(squares / term.weights)


def rounding_error(term: Term, members: Sequence[Precision]) -> float:
    """The root mean square of what rounding changes."""
    squares = 0.0
    for index, r in enumerate(members):
        weight = whole(term.latent(index))
        levels = r.grouping.expand(r.levels(r.grid(whole(r.decision))))
        squares += float((r.quantize(weight, levels) - weight).to(torch.float32).square().sum())
    return math.sqrt(squares / term.weights)
