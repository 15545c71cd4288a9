"""Networks of chapter 3 whose layers share templates: SWRN-d-w-k, SWRN-50-2 and the shortest-paths SCNN.

Their layers are those of the networks they come from; `sharing` says what `SoftSharing` is given when they are trained:

    model = zoo.build("swrn-28-10-2")
    plan = compress(model, SoftSharing(**model.sharing), steps=…)

SWRN-d-w-k: of each stage, all convolutions but those of the first block share k templates; (d − 10)/3 of them, as many as
there are layers, where k is left out. SWRN-50-2: twelve groups, a stage's reducing, preserving and expanding convolutions
apart, as many templates as layers.
"""

from typing import Any

from paretorch.errors import ConfigError
from paretorch.zoo.networks.imagenet_resnet import ImageNetResNet
from paretorch.zoo.networks.shortest_paths_cnn import ShortestPathsCNN
from paretorch.zoo.networks.wide_resnet import WideResNet


class SWRN(WideResNet):
    """WRN-`depth`-`widen` to be trained with `templates` in each stage, with `dropout` between a block's convolutions."""

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
            raise ConfigError(f"An SWRN has 16, 22, 28, 40, ... layers, not {depth}: fewer leave none to share.")
        if templates is not None and templates < 1:
            raise ConfigError(f"An SWRN has 1 or more templates in a stage, not {templates}.")
        super().__init__(depth, widen, dropout, classes, channels)
        self.sharing: dict[str, Any] = {"templates": templates, "exclude": self.leave_out["sharing"]}


class ImageNetSWRN(ImageNetResNet):
    """SWRN-50-`widen` for 224×224 images."""

    def __init__(self, widen: int = 2, classes: int = 1000, activation: str = "relu") -> None:
        super().__init__(50, widen, classes, activation)
        self.sharing: dict[str, Any] = {"templates": None, "exclude": self.leave_out["sharing"]}


class ShortestPathsSCNN(ShortestPathsCNN):
    """The shortest-paths network with as many templates as 3×3 layers, or `templates`."""

    def __init__(self, layers: int = 20, width: int = 32, templates: int | None = None) -> None:
        super().__init__(layers, width)
        self.sharing: dict[str, Any] = {"templates": templates, "exclude": self.leave_out["sharing"]}
