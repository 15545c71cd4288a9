"""SMOL-A: learned precision of activations (section 5.4, "Quantizing Activations").

    u + M/2 · σ(s) ⊙ ε, ε ~ U(−1, 1),   price λ Σ log₂(1 + e⁻ˢ),   p = ⌊1 + log₂(1 + e⁻ˢ)⌋, then Q(u, p)

s has the shape of a feature map, without the batch; ε has one number for each example too. M is the width of the
activation's range: 1 for sigmoid, 2 for tanh, 6 for ReLU6, and α for ReLU, which is clipped to [0, α] with α learned
(PACT, Choi et al. 2018). What differs from the printed text: the target, as in SMOL, and a quantizer that the text
leaves open (see `paretorch.edits.quantize_activation`).
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from paretorch.core.attach.activations import BOUNDED, OutputRelaxation, OutputSite
from paretorch.core.attach.sites import Site
from paretorch.core.groups import Broadcast, Grouping
from paretorch.core.method import Term
from paretorch.core.step.noise import uniform
from paretorch.edits import QuantizeActivation
from paretorch.edits.quantize_activation import MAX_STEPS, QuantizedActivation, clip, quantize_uniform, steps_of
from paretorch.errors import ConfigError
from paretorch.methods.precision.levels import Leveled, allocate
from paretorch.methods.precision.smol import SMOL
from paretorch.support.checks import require_number
from paretorch.support.sharded import gather, whole

LEAST_ALPHA = 1e-3


@dataclass(frozen=True, kw_only=True)
class SMOLActivations(SMOL):
    """Learn how many bits each activation needs. Give `compress` an example, for the shapes.

    group: what shares a precision: "weight" (one per position of the feature map), "channel" (the first dimension after
    the batch), "layer", "network", a block shape, or a callable. include: by default every `nn.ReLU`, `ReLU6`,
    `Hardtanh`, `Sigmoid`, `Hardsigmoid`, `Tanh` and `Softsign` module that the example passes; a module used at several
    places decides, and counts, once. target_bits: average bits over the selected activations.
    alpha: where the learned range of a ReLU starts; "fit": at the largest value that the example gives.
    alpha_decay: the weight decay of α, PACT's 2λ_α. bounds: the range (low, high) of other modules, such as GELU.
    All other options are SMOL's; `zero_precision`, `scale` and `format` mean nothing here.

    Example:
        >>> import torch, paretorch as pt
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
        >>> plan = pt.compress(model, pt.SMOLActivations(target_bits=4.0), steps=100, example=torch.randn(2, 8))
        >>> plan
        Plan(SMOLActivations: 0 weights, 1 activations, searching, 100 steps)
    """

    scale: str | int = "fit"
    alpha: float | str = 8.0
    alpha_decay: float = 5e-4
    bounds: tuple[float, float] | None = None

    kind: ClassVar[str] = "activations"
    order: ClassVar[int] = 3
    on_activations: ClassVar[bool] = True
    per_layer: ClassVar[frozenset[str]] = frozenset(
        {"group", "init_bits", "rounding", "allowed_bits", "alpha", "alpha_decay", "bounds"}
    )

    def check(self) -> None:
        super().check()
        if self.zero_precision or self.scale != "fit" or self.format is not None:
            raise ConfigError("SMOLActivations has no zero_precision, scale or format: they are about weights")
        lowest = min(self.allowed_bits, default=1)
        if self.target_bits is not None and self.target_bits < lowest:
            raise ConfigError(f"target_bits={self.target_bits!r} is below the {lowest} that every activation gets")
        if self.alpha != "fit":
            require_number("alpha", self.alpha, 0.0, 1e6, 'give a positive number, or "fit"', above=True)
        require_number("alpha_decay", self.alpha_decay, 0.0, 1e6, "a weight decay is 0 or more")
        if self.bounds is not None:
            check_bounds(self.bounds)

    def check_beside(self, kinds: set[str]) -> None:
        """Goes with any others: they act on weights."""

    def with_target(self, share: float) -> Self:
        return self  # bytes of the file are about weights

    def relax(  # type: ignore[override]
        self, site: Site, grouping: Grouping, seed: int, together: set[str]
    ) -> "ActivationPrecision":
        assert isinstance(site, OutputSite)
        bounds = self.bounds if self.bounds is not None else known_bounds(site.module)
        if bounds is None and not isinstance(site.module, nn.ReLU):
            raise ConfigError(
                f"the range of {site.name}, a {type(site.module).__name__}, is not known: "
                f'give it, as in overrides={{"{site.name}": {{"bounds": (-0.2, 6.0)}}}}, or exclude it'
            )
        count = math.prod(grouping.grid if isinstance(grouping, Broadcast) else grouping.shape)
        if count > MAX_STEPS:
            raise ConfigError(
                f"{site.name} would have a map of {count:,} precisions, and a file holds up to {MAX_STEPS:,}: "
                'use group="channel"'
            )
        alpha = None
        if bounds is None:
            top = site.largest if self.alpha == "fit" else float(self.alpha)
            alpha = (max(top, LEAST_ALPHA), self.alpha_decay)
        return ActivationPrecision(self, site, grouping, seed, bounds or (0.0, 0.0), alpha)

    def round(self, term: Term, factor: float) -> None:
        budget = None if self.target_bits is None else self.target_bits * term.weights
        allocate(term, [r for r in term.relaxations if isinstance(r, ActivationPrecision)], budget)

    def measure(self, term: Term) -> dict[str, Tensor]:
        measured = super().measure(term)
        return {"activation_bits": measured["bits"], "activation_bit_price": measured["bit_price"]}


def check_bounds(bounds: Any) -> None:
    """Two finite numbers, the lower one first."""
    if not isinstance(bounds, tuple) or len(bounds) != 2:
        raise ConfigError(f"bounds={bounds!r}: give the lowest and the highest value, such as (-0.2, 6.0)")
    for one in bounds:
        require_number("bounds", one, -1e6, 1e6, "give two finite numbers, such as (-0.2, 6.0)")
    if bounds[0] >= bounds[1]:
        raise ConfigError(f"bounds={bounds!r}: the first must be below the second")


def learned_end(alpha: Tensor) -> Tensor:
    """α as the upper end of a range: above a least value, and with its gradient there too."""
    own = gather(alpha)
    return (own + (own.clamp_min(LEAST_ALPHA) - own).detach()).squeeze(0)


def known_bounds(module: nn.Module) -> tuple[float, float] | None:
    """The range of an activation that has one; None for ReLU, whose upper end is learned, and for all others."""
    if isinstance(module, nn.Hardtanh):
        return float(module.min_val), float(module.max_val)
    if not isinstance(module, BOUNDED):
        return None
    return (-1.0, 1.0) if isinstance(module, nn.Tanh | nn.Softsign) else (0.0, 1.0)


class ActivationPrecision(Leveled, OutputRelaxation):
    """u + M/2 σ(s) ⊙ ε while searching, Q(u, p) once hard; u clipped to its range in both."""

    kind: ClassVar[str] = "activations"
    alpha: nn.Parameter | None
    bounds: Tensor

    def __init__(
        self,
        method: SMOLActivations,
        site: OutputSite,
        grouping: Grouping,
        seed: int,
        bounds: tuple[float, float],
        alpha: tuple[float, float] | None,
    ) -> None:
        super().__init__(method, grouping, seed, site.device)
        self.register_buffer("bounds", torch.tensor(bounds, dtype=torch.float32, device=site.device), persistent=False)
        self.decay = 0.0 if alpha is None else alpha[1]
        self.alpha = (
            None if alpha is None else nn.Parameter(torch.tensor([alpha[0]], dtype=torch.float32, device=site.device))
        )

    @property
    def keeps_zero(self) -> bool:
        """Of a range with zero inside, no number of bits has a level there for sure; at one of its ends, every one."""
        return self.alpha is not None or 0.0 in self.bounds.tolist()

    def ends(self) -> tuple[Tensor, Tensor]:
        """low and high."""
        low, high = self.bounds.unbind()
        return low, high if self.alpha is None else learned_end(self.alpha)

    def forward(self, u: Tensor) -> Tensor:
        s = self.grid()
        low, high = self.ends()
        clipped = clip(u, low, high)
        if not self.hard:
            if not self.training:
                return clipped
            size = (high - low) / 2 * self.grouping.expand(torch.sigmoid(s))
            return clipped + (uniform(u.shape, self.step, self.seed) * size).to(u.dtype)
        rounded = quantize_uniform(clipped, low, high, self.steps(s).to(torch.float32), self.training)
        if not self.training:
            return rounded
        return rounded + self.grouping.expand(0.0 * s).to(u.dtype)  # a zero gradient for s, so that DDP sees it

    def steps(self, s: Tensor) -> Tensor:
        """2^p − 1, in a shape that broadcasts against a feature map."""
        return self.grouping.expand(steps_of(self.levels(s.detach())))

    def plain(self, inner: nn.Module) -> nn.Module:
        with torch.no_grad():
            low, high = self.ends()
            return QuantizedActivation(inner, self.steps(self.grid(whole(self.decision))), torch.stack([low, high]))

    def edit(self, modules: tuple[str, ...]) -> QuantizeActivation:
        return QuantizeActivation(modules, tuple(self.grouping.expand(self.grid(whole(self.decision))).shape))

    def trained(self) -> list[tuple[nn.Parameter, float]]:
        return [] if self.alpha is None else [(self.alpha, self.decay)]
