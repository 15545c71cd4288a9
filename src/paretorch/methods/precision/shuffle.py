"""Training with a given map of precisions, as it was found or shuffled (section 5.5.3).

Is there structure in which weight has how many bits? The thesis trains three networks: SMOL's own; new weights with the
precisions that SMOL has found; and new weights with these precisions permuted within each layer.

    precisions = precision_map(small)                         # of a finalized network
    compress(fresh, GivenPrecision(precisions=precisions.shuffled(seed=1)), steps=...)
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from paretorch.core.attach.sites import Site
from paretorch.core.groups import Group, Grouping
from paretorch.core.step.noise import seed_for
from paretorch.edits import Edit, Scale, edits_of, read_edits
from paretorch.errors import ConfigError
from paretorch.methods.precision.grid import MAX_BITS, require_digits
from paretorch.methods.precision.rivals.rival import Rival
from paretorch.methods.precision.rivals.uniform import Fixed


@dataclass(frozen=True, eq=False, repr=False)
class PrecisionMap:
    """Bits of every weight by the tensor's name, and the exponents of scales where they are not 0."""

    bits: Mapping[str, Tensor]
    exponents: Mapping[str, int] = field(default_factory=dict)

    @property
    def average(self) -> float:
        """Bits per weight."""
        return sum(int(p.sum()) for p in self.bits.values()) / max(sum(p.numel() for p in self.bits.values()), 1)

    def shuffled(self, seed: int = 0) -> "PrecisionMap":
        """Every tensor's bits in a random order: the same histogram in each layer, no structure."""
        return PrecisionMap({name: _permuted(p, seed_for(seed, name)) for name, p in self.bits.items()}, self.exponents)

    def __repr__(self) -> str:
        # A plan tells configurations apart by this: as long as it takes to name the map, no longer.
        told = hashlib.sha256()
        for name, p in sorted(self.bits.items()):
            told.update(f"{name}{tuple(p.shape)}{self.exponents.get(name, 0)}".encode())
            told.update(p.to(torch.uint8).cpu().contiguous().numpy().tobytes())
        return f"PrecisionMap({len(self.bits)} weights, {self.average:.3f} bits, {told.hexdigest()[:16]})"


def precision_map(
    model: nn.Module | Mapping[str, Tensor], edits: Sequence[Edit | Mapping[str, Any]] | None = None
) -> PrecisionMap:
    """Read off the values: p of every weight on the grid of chapter 5, in every tensor of two or more dimensions on it.

    model: finalized, or its state; `edits`: the scales, where a state alone is given (a module knows its own). A tied
    weight is there once, by its first name.
    """
    known = edits_of(model) if edits is None and isinstance(model, nn.Module) else read_edits(edits or ())
    state = model.state_dict() if isinstance(model, nn.Module) else model
    exponents = {edit.weight: edit.exponent for edit in known if isinstance(edit, Scale)}
    first = {(w.data_ptr() or id(w), w.stride(), w.shape): name for name, w in reversed([*state.items()])}
    weights = {name: w for name, w in state.items() if w.dim() > 1 and w.is_floating_point() and name in first.values()}
    read = {name: _read(w.detach().to(torch.float32) * 2.0 ** -exponents.get(name, 0)) for name, w in weights.items()}
    found = {name: p for name, p in read.items() if p is not None}
    if not found:
        raise ConfigError("no weight of this network lies on the grid of SMOL: finalize a plan with SMOL first")
    return PrecisionMap(found, {name: k for name, k in exponents.items() if name in found})


@dataclass(frozen=True, kw_only=True)
class GivenPrecision(Rival):
    """Train weights at precisions that are known: W = 2^k Q(w / 2^k, p) from the first step on, straight through.

    precisions: of every selected weight, in place of `bits`.
    """

    group: Group = "weight"
    precisions: PrecisionMap | None = None

    per_layer: ClassVar[frozenset[str]] = frozenset()
    grouped: ClassVar[tuple[str, ...]] = ("weight",)

    def check(self) -> None:
        super().check()
        if not isinstance(self.precisions, PrecisionMap):
            raise ConfigError("GivenPrecision needs precisions: give precision_map(model) of a finalized network")

    def relax(self, site: Site, grouping: Grouping, seed: int, together: set[str]) -> Fixed:
        assert self.precisions is not None
        p = self.precisions.bits.get(site.name)
        if p is None or p.shape != site.weight.shape:
            known = ", ".join(list(self.precisions.bits)[:4])
            raise ConfigError(
                f"the map has no precisions of the shape {tuple(site.weight.shape)} for {site.name}; it has {known} …: "
                "exclude the layer, or use the map of the same network"
            )
        require_digits(site.name, site.weight.dtype, int(p.max()))
        # The scale was chosen for other weights: new ones beyond it are clipped, as those were.
        relaxation = Fixed(grouping, 0, site.weight.device, self.precisions.exponents.get(site.name, 0))
        relaxation.decision.data.copy_(p)
        return relaxation


def _read(x: Tensor) -> Tensor | None:
    """The least p with x an odd multiple of 2^(1−p), 0 for zero; None where some value is on no such grid."""
    bits = torch.full(x.shape, -1, dtype=torch.int32, device=x.device)
    bits[x == 0] = 0
    for p in range(1, MAX_BITS + 1):
        scaled = x * 2.0 ** (p - 1)
        bits[(bits < 0) & (scaled == torch.round(scaled)) & (x.abs() < 2.0)] = p
    return bits if bool((bits >= 0).all()) else None


def _permuted(p: Tensor, seed: int) -> Tensor:
    order = torch.randperm(p.numel(), generator=torch.Generator().manual_seed(seed))
    return p.flatten()[order.to(p.device)].view(p.shape)
