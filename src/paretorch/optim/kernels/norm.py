"""The root mean square of η over the whole network: every bucket, every device, every rank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    Shards = tuple[ProcessGroup, ...]


def combine(parts: Iterable[tuple[Tensor, Shards]]) -> Tensor:
    """(Σ η², d) of the network from those of its buckets, summed in their order.

    A bucket of sharded parameters knows its own shard alone, so its sums are added over the ranks that hold the other
    shards. Replicated parameters are the same on every rank and are counted once.
    """
    local: dict[Shards, Tensor] = {}
    for stats, shards in parts:
        known = local.get(shards)
        local[shards] = stats if known is None else known + stats.to(known.device, non_blocking=True)
    for shards in [each for each in local if each]:
        local[shards] = local[shards].clone()  # what a bucket gave is its own
        for group in shards:
            dist.all_reduce(local[shards], group=group)
    totals = list(local.values())
    return sum((t.to(totals[0].device, non_blocking=True) for t in totals[1:]), start=totals[0])


def root_mean_square(total: Tensor) -> Tensor:
    """√(Σ η² / d), and 1 where nothing has had a gradient yet (then every m is 0 as well). A tensor: no host waits."""
    squares, live = total.unbind()
    rms = (squares / live.clamp(min=1)).sqrt()
    return torch.where(live > 0, rms, torch.ones_like(rms))
