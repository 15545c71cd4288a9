"""What `harden` finds undecided: weights that rounding would move by more than they were trained for, and rows without data.

Rows of an embedding that no batch has shown get the bits that the other rows have on average. Only the price acts on such a row, if anything,
whatever its words will need later. All these rows have taken the very same steps, so at the end of a search they share one
value of s, to the last digit.
"""

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from paretorch.core.method import Term
from paretorch.core.relaxation import PREFIX, Relaxation
from paretorch.errors import UndecidedWarning, warn
from paretorch.methods.precision.grid import real_bits, s_of_bits
from paretorch.methods.precision.noisy import Precision
from paretorch.support.sharded import whole, write


def step_of(term: Term) -> int:
    """The step of the plan; reads it from the device."""
    return int(getattr(term.root, f"{PREFIX}step"))


def warn_large_change(term: Term, why: str) -> None:
    """Warn that rounding will change the network noticeably."""
    warn(
        f"harden at step {step_of(term)} of {term.steps}: {why}, so rounding will change the network; train on to the target, fine-tune "
        "after harden, or look first with plan.hardened()",
        UndecidedWarning,
    )


def noise_size(term: Term, members: Sequence[Precision]) -> float:
    """The root mean square of the noise of all weights: 1/√3 of how far it reaches."""
    squares = 0.0
    for index in range(len(members)):
        for part in term.parts(index):
            own = cast(Precision, part.relaxation)
            reach = own.reach(part.latent, own.grid(whole(own.decision)))
            squares += float(reach.expand(own.grouping.shape).square().sum()) / 3.0
    return math.sqrt(squares / term.weights)


def rounding_error(term: Term, members: Sequence[Precision]) -> float:
    """The root mean square of what rounding changes."""
    squares = 0.0
    for index in range(len(members)):
        for part in term.parts(index):
            own = cast(Precision, part.relaxation)
            levels = own.grouping.expand(own.levels(own.grid(whole(own.decision))))
            squares += float((own.quantize(part.latent, levels) - part.latent).to(torch.float32).square().sum())
    return math.sqrt(squares / term.weights)


_LOOKED_UP = (nn.Embedding, nn.EmbeddingBag)
_FEWEST, _RAREST = 3, 1e-3  # rows, and their share: two of many thousand agree by chance


def unseen_rows(relaxation: Relaxation, s: Tensor) -> Tensor | None:
    """Which rows, as booleans, were never shown; None if each row was, or if rows do not decide for themselves."""
    grid = relaxation.grid(s)
    if grid.dim() == 0 or grid.shape[0] != relaxation.grouping.shape[0]:
        return None
    rows = grid.flatten(1) if grid.dim() > 1 else grid[:, None]
    alike = (rows == rows[:, :1]).all(1)
    if not bool(alike.any()):
        return None
    values, counts = rows[alike, 0].unique(return_counts=True)
    found = alike & (rows[:, 0] == values[counts.argmax()])
    count = int(found.sum())
    return found if max(_FEWEST, _RAREST * len(found)) <= count < len(found) else None


@torch.no_grad()
def raise_unseen(term: Term, warns: bool) -> None:
    """Write average decisions of the rows that were shown where none were; call it before decisions are rounded."""
    for site, relaxation in zip(term.sites, term.relaxations, strict=True):
        if not all(isinstance(module, _LOOKED_UP) for module, *_ in site.owners):
            continue
        decision = relaxation.decision
        s = whole(decision)
        found = unseen_rows(relaxation, s)
        if found is None:
            continue
        rows = s.view(len(found), -1)
        average = s_of_bits(real_bits(rows[~found]).mean()).to(s.dtype)
        write(decision, torch.where(found[:, None], average, rows).view_as(s))
        if warns:
            warn(
                f"{int(found.sum()):,} of {len(found):,} rows of {site.name} were in no batch, so nothing says how many bits they need: "
                "they get the average of the others",
                UndecidedWarning,
            )
