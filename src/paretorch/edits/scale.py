"""The edit that says by which power of two the grid of a weight is scaled."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

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
