"""Networks of chapter 3 whose layers share templates: SWRN-d-w-k, SWRN-50-2 and the shortest-paths SCNN.

They have the layers of the networks they derive from; `sharing` has the arguments of `SoftSharing` for their training:

    model = zoo.build("swrn-28-10-2")
    plan = compress(model, SoftSharing(**model.sharing), steps=…)

SWRN-d-w-k: in each stage, all convolutions except those of the first block share k templates. Without k there are
(d − 10)/3, as many as layers. SWRN-50-2 has twelve groups, since the reducing, preserving and expanding convolutions of a
stage differ in shape, and as many templates as layers.
"""

from typing import Any

from paretorch.errors import ConfigError
from paretorch.zoo.networks.plain import ShortestPathsCNN
from paretorch.zoo.networks.resnet import ImageNetResNet, WideResNet


class SWRN(WideResNet):
    """WRN-`depth`-`widen` for training with `templates` per stage. `dropout` is between the convolutions of a block."""

    def __init__(
        self,
        depth: int = 28,
        widen: int = 10,
        templates: int | None = None,
        dropout: float = 0.0,
        classes: int = 10,
        channels: int = 3,
    ) -> None:
        if depth < 16:
            raise ConfigError(f"An SWRN has 16, 22, 28, 40, ... layers, not {depth}: with fewer, no layers can share")
        if templates is not None and templates < 1:
            raise ConfigError(f"An SWRN has 1 or more templates per stage, not {templates}")
        super().__init__(depth, widen, dropout, classes, channels)
        self.sharing: dict[str, Any] = {"templates": templates, "exclude": self.leave_out["sharing"]}


class ImageNetSWRN(ImageNetResNet):
    """SWRN-50-`widen` for 224×224 images."""

    def __init__(self, widen: int = 2, classes: int = 1000, activation: str = "relu") -> None:
        super().__init__(50, widen, classes, activation)
        self.sharing: dict[str, Any] = {"templates": None, "exclude": self.leave_out["sharing"]}


class ShortestPathsSCNN(ShortestPathsCNN):
    """The shortest-paths network for training with `templates`, by default as many as 3×3 layers."""

    def __init__(self, layers: int = 20, width: int = 32, templates: int | None = None) -> None:
        super().__init__(layers, width)
        self.sharing: dict[str, Any] = {"templates": templates, "exclude": self.leave_out["sharing"]}
