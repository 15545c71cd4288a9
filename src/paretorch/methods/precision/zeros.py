"""What weights would cost if their zeros were found now: the count that a search with zero precision is steered by.

A weight of p bits is nearer to zero than to its grid where |w| ≤ 2^k 2^(−p). While searching 2^(1−p) is σ(s), so that is
where |w| ≤ 2^k σ(s)/2: within half of its noise. Such weights will count no bits; were they counted as one at least, a target
below that would be out of reach, and the price would rise without end.
"""

from typing import cast

import torch
from torch import Tensor

from paretorch.core.method import Term
from paretorch.core.step.sample import some, stride_for
from paretorch.methods.precision.grid import power_of_two, real_bits
from paretorch.methods.precision.leveled import Leveled
from paretorch.support.sharded import whole

_SEEN = 2**16  # weights of a layer


def are_found(term: Term) -> bool:
    """Whether some of these weights may get zero precision."""
    return any(getattr(r, "zero_precision", False) for r in term.relaxations)


def count_search(term: Term) -> tuple[Tensor, Tensor]:
    """The share of the weights that other methods keep, and the bits per selected weight without those that would be zeros."""
    shares, bits = [], []
    for r, latent, chain in zip(cast(list[Leveled], term.relaxations), term.latents(), term.chains, strict=True):
        weight, kept = whole(latent), chain.survives()
        every = stride_for(weight.numel(), _SEEN)
        s = some(r.grouping.expand(r.grid(whole(r.decision))), every, weight)
        used = torch.ones_like(s) if kept is None else some(kept, every, weight)
        shares.append(used.mean() * weight.numel())
        if r.zero_precision:
            noise = power_of_two(r.power) * torch.sigmoid(s)
            used = used * (some(weight, every, weight).to(torch.float32).abs() > 0.5 * noise)
        bits.append((used * real_bits(s)).mean() * weight.numel())
    return torch.stack(shares).sum() / term.weights, torch.stack(bits).sum() / term.weights
