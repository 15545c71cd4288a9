"""What a network in a round consists of, by the names of its weights: the weights behind the masks, the decisions, the masks.

All of it is kept on the CPU, so that it can be stored and compared wherever it was trained.
"""

import torch
from torch import Tensor, nn

from paretorch.core.attach.weights import RelaxedWeight
from paretorch.core.plan import Plan
from paretorch.core.relaxation import PREFIX, Relaxation
from paretorch.errors import DivergenceError
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
        if relaxation.room == "sparsity"
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
