"""A weight whose grid has a scale."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from paretorch.edits.edit import Edit, ModelInfo
from paretorch.errors import ArtefactError, ConfigError

MAX_BITS = 16
"""Bits of a weight on the fixed-point grid of chapter 5, at most."""
_MAX_EXPONENT = 1100  # of float64


@dataclass(frozen=True)
class Scale(Edit):
    """The fixed-point grid of `weight` is scaled by 2**exponent, exponent not 0.

    The stored values hold the scale already. The edit lets a report read their precisions exactly.
    """

    weight: str
    exponent: int

    kind: ClassVar[str] = "scale"
    json_fields: ClassVar[Mapping[str, type]] = {"weight": str, "exponent": int}
    structural: ClassVar[bool] = False

    @classmethod
    def check_json(cls, data: Mapping[str, Any]) -> None:
        if abs(data["exponent"]) > _MAX_EXPONENT:
            raise ArtefactError("a 'scale' edit has an exponent that no number has")

    def check(self, info: ModelInfo) -> None:
        if self.weight not in info.names:
            raise ConfigError(f"an edit scales a weight that the network does not have: it has no {self.weight[:80]!r}")

    def apply(self, model: nn.Module) -> None:
        """Do nothing: the values hold the scale."""
