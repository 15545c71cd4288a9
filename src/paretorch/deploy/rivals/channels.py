"""Channel pruning by magnitude (Li et al., "Pruning Filters for Efficient ConvNets", 2017): whole channels of a trained network go.

    score of a channel: the root mean square of the weights that make it, over all layers whose channels go together,
    divided by the mean score of its layer; the lowest of the network go.

What differs: the paper sums |w| and prunes so many filters of each layer. `by="torch-pruning"` lets that package's group
magnitude choose; the cut is the same.
"""

from __future__ import annotations

import copy
import fnmatch
import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from paretorch.core.channels.couple import couple
from paretorch.core.channels.coupling import Coupling
from paretorch.edits import EDITS
from paretorch.edits.keep_channels import channel_edits
from paretorch.errors import ConfigError, MissingExtraError
from paretorch.support.checks import require_count


def prune_channels(
    model: nn.Module,
    example: Tensor,
    share: float,
    *,
    exclude: str | Sequence[str] = (),
    by: str = "magnitude",
    count: str = "weights",
    multiple: int = 1,
) -> nn.Module:
    """Return a copy without the weakest channels, to be fine-tuned and saved.

    Args:
        share: Of the weights to remove, about.
        exclude: A pattern, or several, of weights whose own outputs stay.
        by: "magnitude", or "torch-pruning" if that package is installed.
        count: "weights", or "macs" for a share of these (by magnitude only).
        multiple: Layers keep a multiple of so many channels (by magnitude only).
    """
    if not 0.0 < share < 1.0:
        raise ConfigError(f"share={share!r}: give the share of weights to remove, above 0 and below 1, such as 0.5")
    if by not in ("magnitude", "torch-pruning"):
        raise ConfigError(f'by={by!r}: use "magnitude" or "torch-pruning"')
    if count not in ("weights", "macs"):
        raise ConfigError(f'count={count!r}: use "weights" or "macs"')
    require_count("multiple", multiple, 1, "give a number of channels, such as 16")
    if by == "torch-pruning" and (count != "weights" or multiple != 1):
        raise ConfigError(
            'by="torch-pruning" counts weights, and takes channels one by one: leave out count and multiple'
        )
    network = copy.deepcopy(model).cpu().eval()
    patterns = (exclude,) if isinstance(exclude, str) else exclude
    # Excluded layers (a classifier) keep their own outputs, but lose the inputs that other layers no longer produce.
    chosen = {
        name
        for name, weight in network.named_parameters()
        if weight.dim() > 1 and not any(fnmatch.fnmatchcase(name.removesuffix(".weight"), one) for one in patterns)
    }
    coupling = couple(network, example.cpu(), chosen, "channel pruning")
    if by == "magnitude":
        scores = _scores(network, coupling)
        keep = coupling.pad(coupling.keep_best(scores, 1.0 - share, count, multiple), scores, multiple)
    else:
        keep = _by_torch_pruning(network, example.cpu(), coupling, share)
    edits = channel_edits(coupling.kept(keep))
    for edit in edits:
        edit.apply(network)
    network.__dict__[EDITS] = edits
    return network


def _scores(network: nn.Module, coupling: Coupling) -> Tensor:
    squares, counts = torch.zeros(coupling.count), torch.zeros(coupling.count)
    for name, weight in network.named_parameters():
        if name in coupling.gates and weight.dim() > 1:
            rows = coupling.grouping(name, weight.shape)
            squares += rows.reduce(weight.detach() ** 2)
            counts += rows.sizes
    score = (squares / counts.clamp_min(1)).sqrt()
    scaled = score.clone()
    for one in coupling.sets:
        scaled[one] = score[one] / score[one].mean().clamp_min(1e-12)
    return scaled


def _by_torch_pruning(network: nn.Module, example: Tensor, coupling: Coupling, share: float) -> Tensor:
    """Return the channels that torch-pruning keeps, at the ratio that comes nearest to the share."""
    low, high, best = 0.0, 1.0, torch.ones(coupling.count, dtype=torch.bool)
    for _ in range(8):
        ratio = (low + high) / 2
        keep = _kept_by_torch_pruning(network, example, coupling, ratio)
        left = float(coupling.share(keep[None].float(), "weights"))
        if abs(left - 1.0 + share) < abs(float(coupling.share(best[None].float(), "weights")) - 1.0 + share):
            best = keep
        low, high = (ratio, high) if left > 1.0 - share else (low, ratio)
    return best


def _kept_by_torch_pruning(network: nn.Module, example: Tensor, coupling: Coupling, ratio: float) -> Tensor:
    try:
        torch_pruning: Any = importlib.import_module("torch_pruning")
    except ImportError as error:
        raise MissingExtraError("by='torch-pruning' needs that package: pip install 'paretorch[slim]'") from error
    trial = copy.deepcopy(network)
    own = {cut.module: cut for cut in coupling.cuts if cut.side == "out"}
    left_alone: list[Any] = [
        module
        for name, module in trial.named_modules()
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear) and name not in own
    ]
    pruner = torch_pruning.pruner.MetaPruner(
        trial,
        example[:1],
        importance=torch_pruning.importance.GroupMagnitudeImportance(p=2),
        pruning_ratio=ratio,
        global_pruning=True,
        ignored_layers=left_alone,
    )
    pruner.step()
    keep = torch.ones(coupling.count, dtype=torch.bool)
    for name, outputs, indices in pruner.pruning_history():
        if outputs and name in own:
            decisions = own[name].index[torch.tensor(indices, dtype=torch.long)]
            keep[decisions[decisions >= 0]] = False
    for one in coupling.sets:  # torch-pruning keeps one channel per layer, but not of every coupled set
        if not bool(keep[one].any()):
            keep[one[0]] = True
    return keep
