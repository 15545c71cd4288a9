"""The edit that says by which power of two the grid of a weight is scaled, and exact powers of two."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from paretorch.edits.edit import Edit, ModelInfo
from paretorch.errors import ArtefactError, ConfigError

MAX_BITS = 16
"""The most bits of a weight on the fixed-point grid of chapter 5."""
_MAX_EXPONENT = 1100  # of float64


@dataclass(frozen=True)
class Scale(Edit):
    """The fixed-point grid of `weight` is scaled by 2**exponent. The exponent is not 0.

    The stored values already include the scale. The edit lets a report read their precisions exactly.
    """

    weight: str
    exponent: int

    kind: ClassVar[str] = "scale"
    json_fields: ClassVar[Mapping[str, type]] = {"weight": str, "exponent": int}
    structural: ClassVar[bool] = False

    @classmethod
    def check_json(cls, data: Mapping[str, Any]) -> None:
        if abs(data["exponent"]) > _MAX_EXPONENT:
            raise ArtefactError("A 'scale' edit has an impossible exponent")

    def check(self, info: ModelInfo) -> None:
        if self.weight not in info.names:
            raise ConfigError(f"An edit scales {self.weight[:80]!r}, which the network does not have")

    def apply(self, model: nn.Module) -> None:
        """Do nothing: the values include the scale."""

    def renamed(self, name: Callable[[str], str]) -> Self:
        module, _, attribute = self.weight.rpartition(".")
        return replace(self, weight=f"{name(module)}.{attribute}".lstrip("."))


def power_of_two(exponent: Tensor) -> Tensor:
    """Return 2^exponent (−126 … 127), exact, by writing the exponent bits of an fp32 number."""
    return ((exponent.to(torch.int32) + 127) << 23).view(torch.float32)


def digits(dtype: torch.dtype) -> int:
    """Return the binary digits of a number of this dtype: 24 for fp32, 11 for fp16, 8 for bf16."""
    return 1 - round(math.log2(torch.finfo(dtype).eps))
