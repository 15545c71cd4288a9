"""A threshold that leaves a given share of a network's channels, found on the device in a few rounds of many tries each."""

import math

import torch
from torch import Tensor

from paretorch.core.channels.coupling import TIE, Coupling

_TRIES = 128


def threshold_for(coupling: Coupling, score: Tensor, share: Tensor, unit: str, multiple: int, now: Tensor) -> Tensor:
    """The value nearest to `now` such that the channels with scores at or above it come nearest to the share.

    Not closer to the scores at both its sides than a quarter of the way between them, so that no gate stands on its edge.
    """
    ends = score.new_full((1,), math.inf)
    # How many are open -> the least of them.
    ranked = torch.cat([ends, torch.sort(score, descending=True).values, -ends])

    def share_of(counts: Tensor) -> Tensor:
        return coupling.shares_above(score, ranked.gather(0, counts), unit, multiple)

    most = len(score)
    tries = torch.arange(_TRIES + 1, device=score.device)
    count, span = tries[:1] * 0, most
    while span > 0:  # the most that are within the share: between count and count + span
        stride = math.ceil(span / _TRIES)
        counts = (count + stride * tries).clamp_max(most)
        inside = (share_of(counts) <= share).sum(0, keepdim=True)
        count, span = counts.gather(0, (inside - 1).clamp_min(0)), (stride if stride > 1 else 0)
    pair = torch.cat([count, (count + 1).clamp_max(most)])
    off = (share_of(pair) - share).abs()
    best = torch.where(off[1] <= off[0] + TIE, pair[1:], pair[:1])  # in doubt, keep
    low, high = ranked.gather(0, best + 1).squeeze(0), ranked.gather(0, best).squeeze(0)
    gap = high - low
    margin = torch.where(gap.isfinite(), 0.25 * gap, 0.0)
    above = torch.nextafter(low, ends[0]) + margin
    return torch.minimum(torch.maximum(now, above), high - margin)
