"""The networks and data of the thesis: `build(name)` gives a network, `data.load(name)` its images."""

from paretorch.zoo import data
from paretorch.zoo.registry import build, names

__all__ = ["build", "data", "names"]
