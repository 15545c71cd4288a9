"""A sample of the weights, to steer by: cheap enough for every step, in a handful of kernels for a whole network.

Networks of up to `WHOLE` weights are read whole: an error of 0.1 points in what is kept is 2 % of the weights that a
sparsity of 95 % leaves, and rounding would change the network. Of larger ones about `_SIZE` weights are taken, small layers whole and of
others every k-th weight, k a prime above the usual factors of layer shapes, so that no kernel position or channel is
preferred. The first of them moves with the steps, so that k steps see every weight once (where decisions are one a
weight; groups are few and are read at fixed places). Positions are the same in every decision of a weight.
"""

import math

import torch
from torch import Tensor

from paretorch.core.attach import fused
from paretorch.core.relaxation import Chain, Relaxation
from paretorch.support.sharded import is_sharded, whole

WHOLE = 2**20
_SIZE = 2**17
_LEAST = 2**11  # of a layer


class Sample:
    """Values of the decisions at the sampled weights, one kind at a time; `share` weighs them and sums to 1."""

    def __init__(self, chains: list[Chain], kinds: tuple[str, ...], device: torch.device) -> None:
        self._chains = chains
        self._flats: dict[tuple[str, int], Tensor | None] = {}
        total = sum(_size(chain) for chain in chains)
        most = total if total <= WHOLE else max(_LEAST, _SIZE // len(chains))
        self._strides = [stride_for(_size(chain), most) for chain in chains]
        counts = [math.ceil(_size(chain) / k) for chain, k in zip(chains, self._strides, strict=True)]
        shares = [
            torch.full((n,), _size(c) / n / total, dtype=torch.float32) for c, n in zip(chains, counts, strict=True)
        ]
        self.share = torch.cat(shares).to(device)
        self._absent = [torch.full((n,), math.inf, dtype=torch.float32, device=device) for n in counts]
        self.is_whole = all(k == 1 for k in self._strides)
        self._index = {kind: [self._lookup(i, kind) for i in range(len(chains))] for kind in kinds}
        # Rooms are read at the same weights, so all decisions of a weight turn, or none.
        self._turns = [all(self._index[kind][i] is None for kind in kinds) for i in range(len(chains))]
        for kind in kinds:
            for i in range(len(chains)):
                self._flat(i, kind)  # before anything is compiled that looks for them
        self._gathers = {kind: self._gather_of(kind) for kind in kinds}

    def read(self, kind: str, step: Tensor, count: int | None = None) -> Tensor:
        """The decision at each weight that is sampled at this step; +∞ where this kind has none on it.

        count: the step as a number, if the host knows it: then all of it is views and one launch.
        """
        gather = self._gathers[kind]
        if gather is not None and not torch.compiler.is_compiling():  # which has one kernel for all of it, too
            return gather.read(step)
        pieces: list[Tensor] = []
        for i in range(len(self._chains)):
            pieces += self._values(i, kind, step, count)
        return torch.cat(pieces)

    def _gather_of(self, kind: str) -> "Gather | None":
        """A kernel that reads all values of a kind in one launch, if there are kernels and the values lie where they can read them."""
        if not fused.runs_on(self.share.device):
            return None
        flats = [self._flat(i, kind) for i in range(len(self._chains))]
        if any((kind, i) not in self._flats for i in range(len(flats))):
            return None  # sharded
        own = [chain._modules.get(kind) for chain in self._chains]
        for flat, r in zip(flats, own, strict=True):
            if flat is None:
                continue
            is_view = isinstance(r, Relaxation) and flat.data_ptr() == r.decision.data_ptr()
            if not is_view or flat.dtype != torch.float32 or flat.device != self.share.device or len(flat) >= 2**31:
                return None
        places: list[Tensor] = []
        strides: list[int] = []
        for i, flat in enumerate(flats):
            index, k = self._index[kind][i], self._strides[i]
            count = len(self._absent[i])
            places.append(torch.arange(0, count * k, k) if index is None else index.cpu())
            turns = flat is not None and index is None and self._turns[i]
            strides.append(k if turns else 1)
        return Gather(flats, places, strides, self.share.device)

    def noise(self, share: Tensor) -> Tensor:
        """The standard deviation of a share that is told by this sample; 0 where it is the whole network."""
        if self.is_whole:
            return torch.zeros_like(share)
        return (share * (1 - share) / len(self.share)).sqrt()

    def _values(self, i: int, kind: str, step: Tensor, count: int | None) -> list[Tensor]:
        flat = self._flat(i, kind)
        if flat is None:
            return [self._absent[i]]
        index, k = self._index[kind][i], self._strides[i]
        if index is not None:
            return [flat[index]]
        if k == 1 or not self._turns[i]:
            return [flat[::k] if k > 1 else flat]
        if count is None:
            return [flat[(torch.arange(0, len(flat), k, device=flat.device) + step % k) % len(flat)]]
        first = count % k
        found = [flat[first::k]]
        if len(found[0]) < len(self._absent[i]):  # the last of them is one of the first
            last = (first + k * (len(self._absent[i]) - 1)) % len(flat)
            found.append(flat[last : last + 1])
        return found

    def _flat(self, i: int, kind: str) -> Tensor | None:
        """A decision in the order in which it lies in memory: a view, made once, unless it is sharded."""
        if (kind, i) not in self._flats:
            relaxation = self._chains[i]._modules.get(kind)
            decision = relaxation.decision.detach() if isinstance(relaxation, Relaxation) else None
            if decision is not None and is_sharded(decision):
                return some(whole(decision), 1, whole(decision))
            self._flats[kind, i] = None if decision is None else some(decision, 1, decision)
        return self._flats[kind, i]

    def _lookup(self, i: int, kind: str) -> Tensor | None:
        relaxation = self._chains[i]._modules.get(kind)
        if not isinstance(relaxation, Relaxation) or relaxation.grouping.grid == relaxation.grouping.shape:
            return None
        grouping = relaxation.grouping
        entries = torch.arange(math.prod(grouping.grid), device=self.share.device).view(grouping.grid)
        full = grouping.expand(entries).expand(grouping.shape)
        one_each = next((r.decision for r in self._chains[i].relaxations() if r.decision.shape == full.shape), None)
        spread = full.permute(_order(one_each) if one_each is not None else tuple(range(full.dim())))
        return spread.take(torch.arange(0, spread.numel(), self._strides[i], device=spread.device))


class Gather:
    """Reads values out of many tensors in one launch.

    Args:
        flats: The tensors, each as it lies in memory; None: all its values are +∞.
        places: What is read of each.
        strides: k, if the places of a tensor move from 0 to k − 1 and back with the steps; else 1.
    """

    def __init__(
        self, flats: list[Tensor | None], places: list[Tensor], strides: list[int], device: torch.device
    ) -> None:
        counts = torch.tensor([len(one) for one in places])
        self._flats = flats  # their memory is read by address
        self._layers = torch.arange(len(flats), dtype=torch.int32).repeat_interleave(counts).to(device)
        self._places = torch.cat(places).to(torch.int32).to(device)
        self._addresses = torch.tensor([0 if one is None else one.data_ptr() for one in flats]).to(device)
        lengths = [1 if one is None else len(one) for one in flats]
        self._lengths = torch.tensor(lengths, dtype=torch.int32).to(device)
        self._strides = torch.tensor(strides).to(device)

    def read(self, step: Tensor) -> Tensor:
        """The values at this step."""
        from paretorch.core.attach import fused_kernel as kernel

        count, block = len(self._places), fused.BLOCK
        found = torch.empty(count, dtype=torch.float32, device=self._places.device)
        with fused.on_device(found.device):
            kernel.gather[(-(-count // block),)](
                self._layers, self._places, self._addresses, self._lengths, self._strides, step, found, count,
                BLOCK=block, num_warps=4,
            )  # fmt: skip
        return found


def _size(chain: Chain) -> int:
    return math.prod(chain.relaxations()[0].grouping.shape)


def stride_for(count: int, most: int) -> int:
    """Every which of `count` weights to take so that they are at most about `most`: 1, or a prime from 11 on."""
    if count <= most:
        return 1
    k = max(11, math.ceil(count / most))
    while any(k % d == 0 for d in range(2, math.isqrt(k) + 1)):
        k += 1
    return k


def _order(like: Tensor) -> tuple[int, ...]:
    """The dimensions of a tensor in the order in which they lie in memory."""
    return tuple(sorted(range(like.dim()), key=like.stride, reverse=True))


def some(values: Tensor, k: int, like: Tensor) -> Tensor:
    """Every k-th weight's value, in the order in which the weights of `like` lie in memory (channels_last, say).

    Given are one value per weight or one for several, that broadcasts; only these are read, and one per weight without a copy.
    """
    spread = values.expand(like.shape).permute(_order(like))
    if values.shape == like.shape:
        return spread.flatten()[::k]
    return spread.take(torch.arange(0, spread.numel(), k, device=values.device))
