"""What every ticket search passes from round to round: weights, decisions and masks, by the names of the weights.

All of it is kept on the CPU, so that it can be stored and compared wherever it was trained. A method says what to do with it:

    attach     `relaxation`: how masks and weights are trained together in each round
    read off   `ticket`: from the end of a round to the masks m of its ticket (θ̂, m)
    go on      `restart`: from the end of a round to the decisions that the next one begins with

The loop around it (rounds, storing θ̂, rewinding, retraining, resuming) is the same for all: see `loop`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from paretorch.core.attach.sites import Selector
from paretorch.core.attach.weights import RelaxedWeight
from paretorch.core.method import Method
from paretorch.core.plan import Plan
from paretorch.core.relaxation import PREFIX, Relaxation
from paretorch.errors import DivergenceError
from paretorch.support.checks import require_number
from paretorch.support.sharded import whole

Weights = dict[str, Tensor]
"""The state of the plain network (biases and norms too), with the weights θ behind any mask."""
Decisions = dict[str, dict[str, Tensor]]
"""For each masked weight, the state of its relaxation: s, and what else there is."""
Masks = dict[str, Tensor]
"""For each masked weight, True where it is kept."""


def relaxations(model: nn.Module) -> dict[str, Relaxation]:
    """The mask of each weight that has one."""
    return {
        weight.name: relaxation
        for weight in model.modules()
        if isinstance(weight, RelaxedWeight)
        for relaxation in weight.relaxations()
        if relaxation.kind == "sparsity"
    }


def read_weights(model: nn.Module) -> Weights:
    """A copy of the plain state, masks ignored."""
    state = model.state_dict().items()
    return {key: _copied(value) for key, value in state if not any(part.startswith(PREFIX) for part in key.split("."))}


def read_decisions(model: nn.Module) -> Decisions:
    """A copy of the state of every mask."""
    return {
        name: {key: _copied(value) for key, value in one.state_dict().items()}
        for name, one in relaxations(model).items()
    }


def write_decisions(model: nn.Module, decisions: Decisions) -> None:
    """Give every mask this state."""
    for name, one in relaxations(model).items():
        one.load_state_dict(decisions[name])
    Plan.of(model).refresh()


def read_masks(model: nn.Module) -> Masks:
    """What the masks of a hardened network keep."""
    found = {}
    for name, one in relaxations(model).items():
        kept = one.survives(one.grid(whole(one.decision)))
        assert kept is not None
        found[name] = _copied(kept > 0)
    return found


def sparsity(masks: Masks) -> float:
    """The share of dropped weights."""
    kept = sum(int(mask.sum()) for mask in masks.values())
    return 1.0 - kept / sum(mask.numel() for mask in masks.values())


def drop_lowest(scores: dict[str, Tensor], remaining: Masks, rate: float) -> Masks:
    """Of the remaining weights, drop the share `rate` with the lowest scores, ties by index."""
    flat = torch.cat([scores[name][remaining[name]].double() for name in scores])
    if not bool(flat.isfinite().all()):
        raise DivergenceError("a weight or decision is no longer finite: lower the learning rate")
    stays = torch.ones(len(flat), dtype=torch.bool)
    stays[torch.sort(flat, stable=True).indices[: round(rate * len(flat))]] = False
    parts = stays.split([int(remaining[name].sum()) for name in scores])
    kept = {name: remaining[name].clone() for name in scores}
    for name, part in zip(scores, parts, strict=True):
        kept[name][remaining[name]] = part
    return kept


def _copied(value: Tensor) -> Tensor:
    return value.detach().to("cpu", copy=True).contiguous()


@dataclass(frozen=True)
class RoundEnd:
    """The end of a round: weights, decisions as they were trained, and masks as `harden` rounds (or draws) them."""

    weights: Weights
    decisions: Decisions
    masks: Masks


@dataclass(frozen=True, kw_only=True)
class TicketMethod(ABC):
    """Options of a way to search tickets, and the three moments in which it differs from the others."""

    name: ClassVar[str]
    varies: ClassVar[str]  # the option that sets the sparsity, by which the names of runs differ
    rewinds: ClassVar[bool] = False  # whether the printed algorithm goes back to θ̂ before each further round
    may_rewind: ClassVar[bool] = True  # whether that is the user's choice
    frozen: ClassVar[bool] = False  # weights stay at their initialisation, and tickets are not retrained
    fixed: ClassVar[bool] = False  # masks do not change within a round, so a rewound round retrains a ticket

    def check(self) -> None:
        """Refuse options that cannot work, before any training."""
        self.relaxation(()).check()

    @abstractmethod
    def relaxation(self, exclude: Selector) -> Method:
        """What is attached to the network in every round."""

    @abstractmethod
    def ticket(self, end: RoundEnd) -> Masks:
        """The ticket that this round has found."""

    @abstractmethod
    def restart(self, end: RoundEnd) -> Decisions:
        """The decisions at the start of the next round."""

    @property
    def label(self) -> str:
        """Such as "cs-init-0.1"."""
        return f"{self.name}-{self.varies}{getattr(self, self.varies):g}"


def require_rate(name: str, value: float) -> None:
    """A share of the remaining weights."""
    hint = "give the share of the remaining weights to drop in each round, above 0 and below 1, such as 0.2"
    require_number(name, value, 0.0, 0.999, hint, above=True)
