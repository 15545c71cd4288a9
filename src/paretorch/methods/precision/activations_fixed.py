"""Fixed precision of activations, as in the thesis' ImageNet recipe (after BSQ).

Every ReLU is clipped to [0, 6] from the start (ReLU6). Nothing is quantized while precisions of weights are searched;
from `harden` on, activations take the nearest of 2^bits levels over half of that range: 0, 1/5, 2/5, …, 3 with 4 bits,
with straight-through gradients. Values above 3 become 3; here no gradient passes for them (the text does not say).
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from paretorch.core.attach.activations import OutputRelaxation, OutputSite
from paretorch.core.attach.sites import Selector, Site
from paretorch.core.groups import Grouping
from paretorch.core.method import Method, Term
from paretorch.edits import QuantizeActivation
from paretorch.edits.quantize_activation import QuantizedActivation, clip, quantize_uniform
from paretorch.errors import ConfigError
from paretorch.methods.precision.grid import MAX_BITS
from paretorch.support.checks import require_count, require_number


@dataclass(frozen=True, kw_only=True)
class GivenBits(Method):
    """What methods have in common that give the outputs of ReLUs a number of bits and decide nothing."""

    group: str = "layer"
    include: Selector | None = (nn.ReLU, nn.ReLU6)
    bits: int = 4

    kind: ClassVar[str] = "activations"
    unit: ClassVar[str] = "bits"
    order: ClassVar[int] = 3
    on_activations: ClassVar[bool] = True
    per_layer: ClassVar[frozenset[str]] = frozenset({"bits"})

    def check(self) -> None:
        super().check()
        if self.group != "layer":
            raise ConfigError(f'group={self.group!r}: fixed bits are one decision per layer, group="layer"')
        require_count("bits", self.bits, 1, f"give whole bits from 1 to {MAX_BITS}")
        require_number("bits", self.bits, 1, MAX_BITS, f"give whole bits from 1 to {MAX_BITS}")

    def relax(self, site: Site, grouping: Grouping, seed: int, together: set[str]) -> OutputRelaxation:
        assert isinstance(site, OutputSite)
        if not isinstance(site.module, nn.ReLU | nn.ReLU6):
            raise ConfigError(
                f"{site.name} is a {type(site.module).__name__}: {type(self).__name__} takes ReLU and ReLU6 alone; exclude it"
            )
        return self.quantizer(site, grouping)

    @abstractmethod
    def quantizer(self, site: OutputSite, grouping: Grouping) -> OutputRelaxation:
        """What to put on one output."""

    def schedule(self, term: Term, step: Tensor) -> None:
        """Nothing runs on a schedule."""

    def round(self, term: Term, factor: float) -> None:
        """Fixed is round."""

    def with_target(self, share: float) -> Self:
        return self

    def measure(self, term: Term) -> dict[str, Tensor]:
        return {"activation_bits": term.mean(lambda r, s: torch.full_like(s, r.number))}  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class FixedActivations(GivenBits):
    """Quantize the outputs of `nn.ReLU` and `nn.ReLU6` modules to `bits` bits from `harden` on.

    top: what ReLUs are clipped to while searching. share: the part of [0, top] that the levels cover.
    """

    top: float = 6.0
    share: float = 0.5

    per_layer: ClassVar[frozenset[str]] = frozenset({"bits", "top", "share"})

    def check(self) -> None:
        super().check()
        require_number("top", self.top, 0.0, 1e6, "give where ReLUs are clipped, such as 6.0", above=True)
        require_number("share", self.share, 0.0, 1.0, "give a part of the range, above 0, up to 1", above=True)

    def quantizer(self, site: OutputSite, grouping: Grouping) -> "FixedPrecision":
        return FixedPrecision(self, site, grouping)


class EvenLevels(OutputRelaxation):
    """Outputs on 2^bits even levels."""

    kind: ClassVar[str] = "activations"
    steps: Tensor

    def __init__(self, bits: int, site: OutputSite, grouping: Grouping) -> None:
        super().__init__(grouping, 0.0, site.device)
        self.number = float(bits)
        steps = torch.full(grouping.grid, 2**bits - 1, dtype=torch.int32, device=site.device)
        self.register_buffer("steps", steps, persistent=False)

    def quantized(self, u: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """The nearest level from `low` to `high`."""
        return quantize_uniform(clip(u, low, high), low, high, self.steps.to(torch.float32), self.training)

    def unused(self, u: Tensor) -> Tensor:
        """0, with a zero gradient for s, so that DDP sees it."""
        return (0.0 * self.grid()).to(u.dtype)

    def edit(self, modules: tuple[str, ...]) -> QuantizeActivation:
        return QuantizeActivation(modules, tuple(self.steps.shape))


class FixedPrecision(EvenLevels):
    """u clipped to [0, top] while searching; once hard, the nearest of 2^bits levels over [0, share · top]."""

    ends: Tensor

    def __init__(self, method: FixedActivations, site: OutputSite, grouping: Grouping) -> None:
        super().__init__(method.bits, site, grouping)
        ends = torch.tensor([0.0, method.top, method.top * method.share], dtype=torch.float32, device=site.device)
        self.register_buffer("ends", ends, persistent=False)

    def forward(self, u: Tensor) -> Tensor:
        low, top, high = self.ends.unbind()
        return (self.quantized(u, low, high) if self.hard else clip(u, low, top)) + self.unused(u)

    def plain(self, inner: nn.Module) -> nn.Module:
        return QuantizedActivation(inner, self.steps.clone(), self.ends[[0, 2]])
