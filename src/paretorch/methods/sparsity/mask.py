"""The soft masks of Continuous Sparsification on all layers at once: W = c · θ ⊙ σ(β(s + τ)), its gradients and its price.

A gate is a soft step b̂(β, s) → 1{s ≥ 0} as the temperature β grows (section 4.2.4; arctan with the factor that makes it a gate).
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor

from paretorch.core.attach.sites import Site
from paretorch.core.channels.coupling import Channels, sum_rows
from paretorch.core.forms import Form
from paretorch.core.groups import Grouping
from paretorch.core.relaxation import Relaxation, flatten, scalars_of, unflatten
from paretorch.methods.sparsity.saliency import log_magnitude


@dataclass(frozen=True)
class Gate:
    """A gate and its slope in s."""

    value: Callable[[Tensor, Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]

    def __deepcopy__(self, memo: dict[int, Any]) -> "Gate":
        return self  # a copy of a mask has the same gate, not another one like it


def _sigmoid_slope(s: Tensor, beta: Tensor) -> Tensor:
    m = torch.sigmoid(beta * s)
    return beta * m * (1 - m)


def _algebraic(s: Tensor, beta: Tensor) -> Tensor:
    return 0.5 * (1 + s / torch.sqrt(1 / beta + s * s))


GATES = {
    "sigmoid": Gate(lambda s, beta: torch.sigmoid(beta * s), _sigmoid_slope),
    "erf": Gate(
        lambda s, beta: 0.5 * (1 + torch.erf(beta * s)),
        lambda s, beta: beta / math.sqrt(math.pi) * torch.exp(-((beta * s) ** 2)),
    ),
    "arctan": Gate(
        lambda s, beta: 0.5 * (1 + 2 / math.pi * torch.arctan(beta * s)),
        lambda s, beta: beta / math.pi / (1 + (beta * s) ** 2),
    ),
    "algebraic": Gate(_algebraic, lambda s, beta: 0.5 / beta / (1 / beta + s * s) ** 1.5),
}


_FORWARD, _BACKWARD = 0, 2  # places of the two temperatures among the scalars


class Options(Protocol):
    """What a mask reads of its method."""

    @property
    def init(self) -> float: ...
    @property
    def gate(self) -> str: ...
    @property
    def anneal(self) -> float: ...
    @property
    def gradient_anneal(self) -> float: ...
    @property
    def start(self) -> str: ...
    @property
    def rescale(self) -> bool: ...


def opening(gate: str, init: float) -> float:
    """How much of each weight is kept at the start, if all decisions are equal."""
    return float(GATES[gate].value(*torch.tensor([init, 1.0], dtype=torch.float32)))


def _once(grids: Sequence[Tensor]) -> list[Tensor]:
    """Each decision once: that of coupled channels is one for all weights."""
    return list({one.data_ptr(): one for one in grids}.values())


def _shifted(grids: Sequence[Tensor], first: "Mask") -> list[Tensor]:
    """s + τ of each decision once. One by one: a multi-tensor addition of a scalar tensor waits for a GPU to know it."""
    shift = first.scalar(1)
    return [one + shift for one in _once(grids)]


def _again(values: Sequence[Tensor], grids: Sequence[Tensor]) -> list[Tensor]:
    """From one value per decision to one per weight."""
    if len(values) == len(grids):
        return list(values)
    own = dict(zip([one.data_ptr() for one in _once(grids)], values, strict=True))
    return [own[one.data_ptr()].view(one.shape) for one in grids]


def _expanded(members: Sequence["Mask"], masks: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
    """Masks that broadcast against the weights, in their dtype."""
    if len(masks) < len(members):  # one flat tensor
        return list(masks)
    found = [mask if one.is_single else one.grouping.expand(mask) for one, mask in zip(members, masks, strict=True)]
    dtype = like[0].dtype
    return found if found[0].dtype == dtype else [mask.to(dtype) for mask in found]


class Mask(Relaxation):
    """W = c · w ⊙ σ(β(s + τ)); hard: c · w ⊙ 1{s + τ ≥ 0}."""

    kind: ClassVar[str] = "sparsity"

    def __init__(self, options: "Options", site: Site, grouping: Grouping, on_grid: bool) -> None:
        super().__init__(grouping, options.init, site.weight.device)
        self.gate = GATES[options.gate]
        self.on_grid = on_grid
        self.lags = options.gradient_anneal > options.anneal
        self.is_single = grouping.is_single
        self._opening = opening(options.gate, options.init)
        self.adopt(options)
        if self.uses_saliency and not isinstance(grouping, Channels):
            self.decision.data.copy_(log_magnitude(site.weight, self.grouping))

    def adopt(self, options: "Options") -> None:
        """Use the start that the options name: decisions that follow saliencies begin with the whole network open."""
        self.uses_saliency = options.start == "saliency"
        start = self._opening if options.rescale and not self.uses_saliency else 1.0
        self.factor = 2.0 ** round(-math.log2(start)) if self.on_grid else 1.0 / start

    def batch_key(self) -> Hashable:
        return (self.hard, self.training, self.gate, self.lags, self.uses_saliency, self.is_single and self.factor)

    @property
    def is_flat(self) -> bool:
        return self.is_single

    @property
    def is_elementwise(self) -> bool:
        return self.is_single

    @property
    def can_fuse(self) -> bool:
        return self.gate is GATES["sigmoid"] or not self.is_single

    def of_rows(self, part: slice) -> Self | None:
        return self._of_rows(part)

    @classmethod
    def form(cls, members: Sequence["Mask"]) -> Form:
        first = members[0]
        scalars = scalars_of(first._root[0], cls.kind)
        lags = first._place(_BACKWARD) == _BACKWARD
        kind = "open" if first.hard else "gate"
        rows = None if first.is_single else MaskRows(members)
        return Form(kind, rows, first.factor, scalars, lags, first.uses_saliency)

    @classmethod
    def apply_all(cls, members: Sequence["Mask"], grids: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
        factors = [one.factor for one in members[: len(grids)]]
        masks = torch._foreach_mul(cls._masks(members, grids, _FORWARD), factors)
        return list(torch._foreach_mul(list(weights), _expanded(members, masks, weights)))

    @classmethod
    def pull_all(
        cls,
        members: Sequence["Mask"],
        grids: Sequence[Tensor],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        gradients: Sequence[Tensor],
        decide: bool,
    ) -> tuple[list[Tensor], list[Tensor] | None]:
        # ∂W/∂w = c·m(γx) and ∂W/∂s = c·w·m'(γx), both at the gradient's temperature.
        factors = [one.factor for one in members[: len(grids)]]
        soft = cls._masks(members, grids, _BACKWARD)
        own = torch._foreach_mul(list(gradients), _expanded(members, torch._foreach_mul(soft, factors), gradients))
        if not decide:
            return list(own), None
        if inputs[0].is_complex():
            moved = [(gradient * weight.conj()).real for gradient, weight in zip(gradients, inputs, strict=True)]
        else:
            moved = list(torch._foreach_mul(list(gradients), list(inputs)))
        if moved[0].dtype != torch.float32:
            moved = [value.to(torch.float32) for value in moved]
        torch._foreach_mul_(moved, factors)
        groupings = [one.grouping for one in members]
        is_one = all(isinstance(one, Channels) for one in groupings)  # one decision for all
        if is_one:
            moved = [sum_rows(groupings, moved)]
        elif not all(one.is_single for one in members):
            moved = [one.reduce(value) for one, value in zip(groupings, moved, strict=True)]
        if not members[0].uses_saliency:  # a saliency is c·w·∂L/∂W itself
            slopes = cls._slopes(members, grids, soft)
            torch._foreach_mul_(moved, slopes[:1] if is_one else slopes)
        return list(own), moved

    @classmethod
    def _masks(cls, members: Sequence["Mask"], grids: Sequence[Tensor], scalar: int) -> list[Tensor]:
        """The masks on their grids, at the temperature that this scalar has; those of a shared decision are made once."""
        first = members[0]
        shifted = _shifted(grids, first)
        if first.hard:  # s + τ is never 0 once it is rounded
            masks = list(torch._foreach_clamp_min(torch._foreach_sign(shifted), 0.0))
        elif first.gate is GATES["sigmoid"]:
            masks = list(torch._foreach_sigmoid(torch._foreach_mul(shifted, first.scalar(first._place(scalar)))))
        else:
            masks = [first.gate.value(x, first.scalar(first._place(scalar))) for x in shifted]
        return _again(masks, grids)

    def _place(self, scalar: int) -> int:
        return scalar if self.lags and self.training else _FORWARD

    @classmethod
    def keep_all(cls, members: Sequence["Mask"], grids: Sequence[Tensor]) -> list[Tensor]:
        return _expanded(members, cls._masks(members, grids, _FORWARD), grids)

    @classmethod
    def limit_all(cls, members: Sequence["Mask"], grids: Sequence[Tensor]) -> None:
        return None

    @classmethod
    def slopes_all(cls, members: Sequence["Mask"], grids: Sequence[Tensor]) -> list[Tensor]:
        first = members[0]
        if first.uses_saliency:  # the target alone moves such decisions
            return list(torch._foreach_mul(list(grids), 0.0))
        place = _BACKWARD if first.lags else _FORWARD
        shifted = _shifted(grids, first)
        return _again([first.gate.slope(x, first.scalar(place)) for x in shifted], grids)

    @classmethod
    def _slopes(cls, members: Sequence["Mask"], grids: Sequence[Tensor], soft: Sequence[Tensor]) -> list[Tensor]:
        """dm/ds at the gradient's temperature, given the masks there: of a sigmoid it is γ m (1 − m)."""
        first = members[0]
        if first.gate is not GATES["sigmoid"]:
            place = first._place(_BACKWARD)
            shifted = _shifted(grids, first)
            return _again([first.gate.slope(x, first.scalar(place)) for x in shifted], grids)
        slopes = torch._foreach_addcmul(list(soft), list(soft), list(soft), value=-1.0)
        torch._foreach_mul_(slopes, first.scalar(first._place(_BACKWARD)))
        return list(slopes)

    def forward(self, weight: Tensor) -> Tensor:
        return weight * (self.keep(self.grid()) * self.factor).to(weight.dtype)

    def keep(self, s: Tensor) -> Tensor:
        if self.hard:
            return self.survives(s)
        return self.grouping.expand(self.gate.value(s + self.scalar(1), self.scalar(0)))

    def threshold(self) -> Tensor:
        return -self.scalar(1)

    def survives(self, s: Tensor) -> Tensor:
        return self.grouping.expand((s + self.scalar(1) >= 0).to(s.dtype))

    def price_slope(self, s: Tensor) -> Tensor:
        return torch.zeros_like(s) if self.uses_saliency else self.gate.slope(s + self.scalar(1), self.scalar(2))

    def scale_exponent(self) -> int | None:
        return round(math.log2(self.factor)) if self.on_grid else None


class MaskRows:
    """c σ(β(s + τ)) of all rows of several weights, for masks that whole rows share."""

    def __init__(self, members: Sequence[Mask]) -> None:
        self._first, self._decisions = members[0], [one.decision for one in members]
        groupings = [one.grouping for one in members]
        device = self._decisions[0].device
        lengths = [math.prod(one.shape) // (one.run or 1) for one in groupings]
        factors = torch.tensor([one.factor for one in members], device=device)
        self._factors = factors.repeat_interleave(torch.tensor(lengths, device=device))
        self._index: Tensor | None = None
        if isinstance(groupings[0], Channels):  # one decision for all; rows without one stay
            self._index = torch.cat([one.index for one in groupings if isinstance(one, Channels)])
            self._factors = torch.where(self._index < groupings[0].grid[0], self._factors, 1.0)

    def forward(self) -> tuple[Tensor, None]:
        return self._coefficients(_FORWARD), None

    def backward(self) -> Tensor:
        return self._coefficients(_BACKWARD)

    def gradients(self, sums: Tensor, squares: Tensor | None) -> list[Tensor]:
        sums = sums * self._factors
        if self._index is not None:
            own = self._decisions[0]
            total = sums.new_zeros(own.numel() + 1).index_add_(0, self._index, sums)[:-1]
            return [(total if self._first.uses_saliency else total * self._slope(own)).view(own.shape)]
        if not self._first.uses_saliency:
            sums = sums * self._slope(flatten(self._decisions))
        return unflatten(sums, self._decisions)

    def _coefficients(self, scalar: int) -> Tensor:
        first = self._first
        s = self._decisions[0].detach() if self._index is not None else flatten(self._decisions)
        shifted = s + first.scalar(1)
        if first.hard:
            masks = (shifted > 0).to(torch.float32)
        else:
            masks = first.gate.value(shifted, first.scalar(first._place(scalar)))
        if self._index is not None:
            masks = torch.cat([masks, masks.new_ones(1)])[self._index]
        return masks * self._factors

    def _slope(self, s: Tensor) -> Tensor:
        first = self._first
        return first.gate.slope(s.detach() + first.scalar(1), first.scalar(first._place(_BACKWARD)))
