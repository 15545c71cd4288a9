"""Folding (chapter 3): layers that have become alike are stored once and run in a loop.

    W_l = c_l W_g,   g the group of layer l, c_l a signed scale

The chapter averages the coefficients of a group, which changes the function where they are multiples of each other (its
own example has negative ones). With one scale per layer, collinear layers fold exactly, with batch norm and without; for
others, W_g and c_l are the best of rank one in the metric of the weights, and the error that is left is reported.
"""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from paretorch.core.attach.sites import Selector, check_patterns
from paretorch.core.finish.recalibrate import recalibrate_norms
from paretorch.core.plan import plans_of
from paretorch.edits import EDITS, Share, edits_of
from paretorch.errors import ConfigError, warn
from paretorch.methods.sharing.layers import Bank, read_banks, unfold
from paretorch.methods.sharing.similarity import absolute_cosine, check_limits, cluster, collapse, mergers
from paretorch.support.arithmetic import exact
from paretorch.support.sharded import is_sharded
from paretorch.support.text import loops_in_words

_WHAT_TO_FOLD = "fold the network that this one was made from (of a run, with its checkpoint.pt)"


@dataclass(frozen=True)
class Folding:
    """How the layers of one group fold: `runs[l]` is the stored layer, 1 2 …, that runs in the place of layer l.

    scales: c_l. errors: ‖W_l − c_l W_g‖ / ‖W_l‖, 0 where the fold is exact. stored: tensors of the group in the network.
    """

    layers: tuple[str, ...]
    runs: tuple[int, ...]
    scales: tuple[float, ...]
    errors: tuple[float, ...]
    stored: int

    @property
    def words(self) -> str:
        """The loops: "layers 3-4 run twice, then back to 1"."""
        return loops_in_words(self.runs)

    @property
    def error(self) -> float:
        """The largest error of a layer."""
        return max(self.errors)

    @property
    def exact(self) -> bool:
        """Whether every layer is what it was, but for rounding."""
        return self.error < 1e-5

    def __str__(self) -> str:
        off = "exact" if self.exact else f"error up to {self.error:.1%} of a weight"
        return (
            f"{self.layers[0]} … {self.layers[-1]}: {len(self.runs)} layers are {max(self.runs)}; {self.words}; {off}"
        )


def fold(
    model: nn.Module,
    *,
    threshold: float | None = None,
    layers: int | None = None,
    only: Selector | None = None,
    recalibrate: Iterable[Any] | None = None,
) -> nn.Module:
    """A copy of a network that shares, in which layers that are alike are one weight, run in a loop.

    threshold: the least absolute cosine of layers that become one. layers: or how many of the sharing layers stay, in all.
    With neither, only layers that are multiples of each other become one, and the network computes what it did.
    only: fold the groups with a layer that this selects (a pattern, type or predicate); the others keep their layers.
    recalibrate: training batches (inputs, or tuples that begin with them), from which batch norm's statistics are estimated
    anew where a fold is not exact: what the old ones were measured on is then no longer what the layers give.
    The copy is of what was given to `compress`, without DDP and the like around it, hardened and finalized; or of what an
    earlier fold, or `load`, gave, where its layers are mixtures still. Where templates are fewer than the layers left, or
    carry masks or precisions, they are what is stored, and layers are mixed from them. `paretorch_folding` of the copy is
    the list of `Folding`: loops in words, scales, errors.

    Example:
        >>> import torch, paretorch as pt
        >>> network = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)))
        >>> plan = pt.compress(network, pt.SoftSharing(), steps=100)
        >>> folded = pt.fold(network, layers=2)
        >>> sum(p.numel() for p in folded.parameters() if p.dim() > 1)  # two weights of 64, each used twice
        128
    """
    check_limits(threshold, layers)
    if threshold is None and layers is None:
        threshold = 1.0
    network = copy.deepcopy(_root(model))
    again = next(plans_of(network), None) is None
    network, banks = unfold(network)
    chosen = _chosen(banks, only)
    labels = _labels(banks, chosen, threshold, layers, again)
    if again:
        _check_known(banks, labels)
        _warn_unknown([bank for bank, one in zip(banks, chosen, strict=True) if one], threshold)
    edits = edits_of(network)
    foldings = []
    with torch.no_grad():
        for number, (bank, own) in enumerate(zip(banks, labels, strict=True)):
            folding, edit = _fold_one(network, f"shared_{number}", bank, own)
            foldings.append(folding)
            edits.append(edit)
    network.__dict__[EDITS] = edits
    network.__dict__["paretorch_folding"] = foldings
    if recalibrate is not None and not all(folding.exact for folding in foldings):
        recalibrate_norms(network, recalibrate)
    return network


def levels(model: nn.Module, only: Selector | None = None) -> dict[int, float]:
    """By the number of layers left, from all that share to one per group, the threshold at which `fold` leaves as many."""
    network = _root(model)
    again = next(plans_of(network), None) is None
    banks = read_banks(network)
    banks = [bank for bank, one in zip(banks, _chosen(banks, only), strict=True) if one]
    count = sum(len(bank.layers) for bank in banks)
    found = {count: 1.0}
    merging = mergers([absolute_cosine(exact(bank.rows)) for bank in banks])
    for merged, (similarity, which, *_) in enumerate(merging, 1):
        if again and similarity == 0.0 and banks[which].stored:
            break
        found[count - merged] = similarity
    return found


def _root(model: nn.Module) -> nn.Module:
    """The network that shares, without what is around it (DDP, a compiled or averaged model)."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"fold takes a network that shares templates, not {type(model).__name__}")
    roots = {bank.root for bank in read_banks(model)}
    if not roots:
        raise ConfigError(
            "fold needs a network that shares templates: compress it with SoftSharing, and fold it before finalize"
        )
    if len(roots) > 1:
        raise ConfigError(f"this {type(model).__name__} has {len(roots)} networks that share: give fold one of them")
    network = roots.pop()
    if any(is_sharded(parameter.data) for parameter in network.parameters()):
        raise ConfigError("fold needs a whole network: load its full state into a copy that was compressed alike")
    return network


def _check_known(banks: Sequence[Bank], labels: Sequence[Sequence[int]]) -> None:
    """Of layers that an earlier fold stored themselves, how alike they were is no longer known."""
    for bank, own in zip(banks, labels, strict=True):
        if bank.stored and len(set(own)) < int((bank.rows != 0).any(0).sum()):
            raise ConfigError(f"{_unknown(bank)}: {_WHAT_TO_FOLD}, or others, by only=")


def _warn_unknown(banks: Sequence[Bank], threshold: float | None) -> None:
    """Warn of layers that may have been alike enough, and stay."""
    unknown = [bank for bank in banks if bank.unfolded]
    if unknown and threshold is not None and threshold < 1.0:
        warn(f"{_unknown(unknown[0])}, so they stay: {_WHAT_TO_FOLD}")


def _unknown(bank: Bank) -> str:
    return f"{bank.layers[0]} and others of its group are stored as they are, and how alike they were is not known here"


def _chosen(banks: Sequence[Bank], only: Selector | None) -> list[bool]:
    """Which groups to fold: those with a layer that `only` selects."""
    chosen = [only is None or any(site.matches(only) for site in bank.sites) for bank in banks]
    if not any(chosen):
        raise ConfigError(f"only={only!r} selects none of the layers that share, such as {banks[0].layers[0]}")
    check_patterns([site for bank in banks for site in bank.sites], only=only)
    return chosen


def _labels(
    banks: Sequence[Bank], chosen: Sequence[bool], threshold: float | None, layers: int | None, again: bool
) -> list[list[int]]:
    """Which stored layer each is to be, by bank; of those that are not chosen, each its own, or what an earlier fold made it."""
    matrices = [absolute_cosine(exact(bank.rows)) for bank, one in zip(banks, chosen, strict=True) if one]
    if layers is not None and layers > (most := sum(len(matrix) for matrix in matrices)):
        raise ConfigError(f"layers={layers}: only {most} layers share")
    folded = iter(cluster(matrices, threshold, layers))
    return [next(folded) if one else _kept(bank, again) for bank, one in zip(banks, chosen, strict=True)]


def _kept(bank: Bank, again: bool) -> list[int]:
    return cluster([absolute_cosine(exact(bank.rows))], 1.0, None)[0] if again else list(range(len(bank.layers)))


def _fold_one(network: nn.Module, name: str, bank: Bank, labels: list[int]) -> tuple[Folding, Share]:
    directions, scales = _collapse_all(bank, labels)
    target = directions[labels] * scales[:, None]
    errors = _errors(bank, target)
    templates = list(bank.templates)
    used = [i for i in range(len(templates)) if bool((target[:, i] != 0).any())] or [0]
    if (bank.relaxed and len(used) <= len(labels)) or len(directions) > len(used):
        uses = [[used.index(i) for i in used if float(row[i]) != 0.0] or [0] for row in target]
        stored = [templates[i] for i in used]
        values = [torch.stack([row[used[i]] for i in own]) for row, own in zip(target, uses, strict=True)]
    else:
        flat = torch.stack([template.flatten() for template in templates])
        stored = [_mixed(flat, direction).view(templates[0].shape) for direction in directions]
        uses = [[label] for label in labels]
        values = list(scales[:, None])
    edit = Share(name, len(stored), bank.layers, tuple(tuple(own) for own in uses))
    edit.apply(network)
    for parameter, value in zip(edit.stored, stored, strict=True):
        getattr(network, parameter).copy_(value)
    state = network.state_dict()
    for layer, value in zip(bank.layers, values, strict=True):
        module, _, attribute = layer.rpartition(".")
        prefix = f"{module}." if module else ""
        state[f"{prefix}parametrizations.{attribute}.0.sharing.s"].copy_(value)
    runs = tuple(label + 1 for label in labels)
    return Folding(bank.layers, runs, tuple(scales.tolist()), tuple(errors.tolist()), len(stored)), edit


def _collapse_all(bank: Bank, labels: list[int]) -> tuple[Tensor, Tensor]:
    """The direction of each group, and the scale of each layer, in float64."""
    gram, rows = bank.gram, exact(bank.rows)
    directions, scales = [], rows.new_ones(len(labels))
    for label in range(max(labels) + 1):
        members = [i for i, own in enumerate(labels) if own == label]
        direction = rows[members[0]]
        if len(members) > 1:
            direction, scales[members] = collapse(rows[members], gram)
        directions.append(direction)
    return torch.stack(directions), scales


def _mixed(flat: Tensor, direction: Tensor) -> Tensor:
    # As the layers themselves are mixed, so that a layer that stays is the same to the last bit.
    total: Tensor = flat[0] * direction[0].to(flat.dtype)
    for template, share_of in zip(flat[1:], direction[1:], strict=True):
        total = total + template * share_of.to(flat.dtype)
    return total


def _errors(bank: Bank, target: Tensor) -> Tensor:
    gram, rows = bank.gram, exact(bank.rows)
    apart = rows - target
    left = ((apart @ gram) * apart).sum(1).clamp_min(0.0).sqrt()
    size = ((rows @ gram) * rows).sum(1).clamp_min(0.0).sqrt()
    errors: Tensor = left / size.clamp_min(1e-12)
    return errors
