"""The networks, one file per family. `paretorch.zoo.build` builds them by name."""

from paretorch.zoo.networks.base import Network

__all__ = ["Network"]
