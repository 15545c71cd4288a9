"""The networks, one file per family. Build them by name with `paretorch.zoo.build`."""

from paretorch.zoo.networks.base import Network

__all__ = ["Network"]
