"""LQ-Nets (Zhang et al., "LQ-Nets: Learned Quantization for Highly Accurate and Compact Deep Neural Networks", 2018).

    W = vᵀb,   b ∈ {−1, 1}^k the nearest code,   ∂W/∂w := 1
    v ← m v + (1 − m) v*,   v* = (B Bᵀ)⁻¹ B w,   B the codes of the weights under v

v*, the basis of least squared error for fixed codes, is found at every step while searching and taken by a moving
average; once hard, v stays. v₀ᵢ = 2^i · 0.6745 std(w) / 2^(k−1).

What differs: one basis per layer by default (the paper's weights have one per channel: group="channel"), because the
file then holds one codebook a layer.
"""

import itertools
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from paretorch.core.attach.sites import Site
from paretorch.core.groups import Grouping
from paretorch.core.method import Term
from paretorch.methods.precision.rivals.rival import TINY, Quantized, Rival, Stack, deviation, straight_through
from paretorch.support.checks import require_number
from paretorch.support.sharded import whole, write

_QUARTILE = 0.6745
_RIDGE = 1e-6  # two bits with equal codes everywhere have no best basis of their own


@dataclass(frozen=True, kw_only=True)
class LQNets(Rival):
    """Learn each layer's basis by minimizing the quantization error. momentum: m, the share of the old basis."""

    momentum: float = 0.9

    widths: ClassVar[tuple[int, ...]] = (1, 2, 3, 4)
    grouped: ClassVar[tuple[str, ...]] = ("layer", "channel")

    def check(self) -> None:
        super().check()
        require_number("momentum", self.momentum, 0.0, 1.0, "give the share of the old basis, from 0 to 1")

    def relax(self, site: Site, grouping: Grouping, seed: int, together: set[str]) -> "_Basis":
        return _Basis(grouping, self.bits, site.weight)

    def schedule(self, term: Term, step: Tensor) -> None:
        for r, latent in zip(term.relaxations, term.latents(), strict=True):
            assert isinstance(r, _Basis)
            old = whole(r.decision)
            best = r.best_basis(whole(latent).to(torch.float32), old)
            write(r.decision, self.momentum * old + (1.0 - self.momentum) * best)


class _Basis(Quantized):
    """W = vᵀb; s holds v, one row a bit."""

    def __init__(self, grouping: Grouping, bits: int, weight: Tensor) -> None:
        super().__init__(Stack(grouping, bits), bits, 0.0, weight.device)
        self.inner = grouping
        self.decision.requires_grad_(False)
        unit = _QUARTILE * deviation(weight.detach().to(torch.float32)).clamp_min(TINY) / 2.0 ** (bits - 1)
        powers = torch.tensor([2.0**i for i in range(bits)], dtype=torch.float32, device=weight.device)
        self.decision.data.copy_((powers * unit).view(-1, *(1,) * len(grouping.grid)).expand(self.grouping.grid))
        self.codes: Tensor
        signs = list(itertools.product((-1.0, 1.0), repeat=bits))
        self.register_buffer("codes", torch.tensor(signs, dtype=torch.float32, device=weight.device), persistent=False)

    def forward(self, weight: Tensor) -> Tensor:
        w = weight.detach().to(torch.float32)
        levels = self._levels(self.grid()).sort(0).values
        value = self.inner.expand(levels[0])
        for low, high in itertools.pairwise(levels):
            value = torch.where(w >= self.inner.expand((low + high) / 2), self.inner.expand(high), value)
        return straight_through(value.expand(weight.shape).to(weight.dtype), weight)

    def best_basis(self, w: Tensor, v: Tensor) -> Tensor:
        """v*: the normal equations, from the number of weights at each level and their sum."""
        levels, order = self._levels(v).sort(0)
        tails = [self._tail(w, None)]
        tails += [self._tail(w, self.inner.expand((a + b) / 2)) for a, b in itertools.pairwise(levels)]
        above = torch.stack([*tails, torch.zeros_like(tails[0])])  # (levels + 1, count and sum, *grid)
        counts, sums = (above[:-1] - above[1:]).unbind(1)
        codes = self.codes[order].movedim(-1, 0)  # (bits, levels, *grid), in the order of the levels
        total = math.prod(self.inner.shape) / math.prod(self.inner.grid)
        gram = (codes[:, None] * codes[None] * counts).sum(2) / total
        return _solve(gram, (codes * sums).sum(1) / total)

    def _levels(self, v: Tensor) -> Tensor:
        """All 2^k values, in the order of their codes."""
        levels: Tensor = torch.tensordot(self.codes, v, dims=1)
        return levels

    def _tail(self, w: Tensor, edge: Tensor | None) -> Tensor:
        """How many weights lie above an edge, and their sum."""
        above = torch.ones_like(w) if edge is None else (w >= edge).to(w.dtype)
        return torch.stack([self.inner.reduce(above), self.inner.reduce(w * above)])


def _solve(gram: Tensor, right: Tensor) -> Tensor:
    """gram⁻¹ right for every group at once, by elimination: a handful of device operations, where a solver would wait."""
    size = len(right)
    rows = [torch.cat([gram[i], right[i : i + 1]]) for i in range(size)]
    for i in range(size):
        pivot = rows[i] / (rows[i][i] + _RIDGE)
        rows = [pivot if j == i else row - row[i] * pivot for j, row in enumerate(rows)]
    return torch.stack([row[size] for row in rows])
