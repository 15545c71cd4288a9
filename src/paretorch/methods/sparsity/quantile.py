"""The score below which a share of the weights lies.

Of values v with sizes n, the cut lies midway between two neighbours in order: below it are those whose middle
(their own size counted by half) is less than `share` of all. Sorting finds it. A compiler can do nothing about a sort, which on
a GPU is many launches, so in a compiled step the cut is found digit by digit: the bits of a float ≥ 0, read as an integer, are in
the order of the floats, and each pass over the values, which is one kernel, settles five of them (the first pass six).
"""

import torch
from torch import Tensor

_DIGITS = ((25, 64), (20, 32), (15, 32), (10, 32), (5, 32), (0, 32))  # place and number of choices; 31 bits in all


def quantile(values: Tensor, sizes: Tensor, share: Tensor) -> Tensor:
    """The cut, 0 where none shall go; values: fp32, 0 or more."""
    find = by_digits if torch.compiler.is_compiling() else by_sorting
    return torch.where(share > 0, find(values, sizes, share), 0.0)


def by_sorting(values: Tensor, sizes: Tensor, share: Tensor) -> Tensor:
    ranked, order = torch.sort(values)
    own = sizes[order]
    below = torch.cumsum(own, 0)
    count = ((below - own / 2) / below[-1] < share).sum().view(1)
    last = len(ranked) - 1
    low, high = ranked[(count - 1).clamp(0, last)], ranked[count.clamp(0, last)]
    return ((low + high) / 2).squeeze(0)


def by_digits(values: Tensor, sizes: Tensor, share: Tensor) -> Tensor:
    bits = values.view(torch.int32)
    wanted = share * sizes.sum()
    # The greatest number such that the values below it are fewer than wanted: the value at which the share is crossed.
    found = torch.zeros((), dtype=torch.int32, device=values.device)
    for place, choices in _DIGITS:
        tried = found + (torch.arange(choices, dtype=torch.int32, device=values.device) << place)
        below = torch.where(bits < tried[:, None], sizes, 0.0).sum(1)
        digit = (below < wanted).sum().sub(1).clamp_min(0).to(torch.int32)
        found = found + (digit << place)
    found = torch.minimum(found, bits.max())
    below = torch.where(bits < found, sizes, 0.0).sum()
    own = torch.where(bits == found, sizes, 0.0).sum()
    # It goes if its middle is below the share.
    goes = below + own / 2 < wanted
    high = torch.where(goes, bits > found, bits >= found)
    least = torch.where(high, values, torch.inf).amin()
    most = torch.where(high, -torch.inf, values).amax()
    return (torch.minimum(least, values.amax()) + torch.maximum(most, values.amin())) / 2
