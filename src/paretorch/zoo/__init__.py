"""The networks and data of the thesis: `build(name)` returns a network, `data.load(name)` a set of images."""

from paretorch.zoo import data
from paretorch.zoo.networks import build, names

__all__ = ["build", "data", "names"]
