from paretorch.workflows.shrink.network import Shrunk, shrink_network

__all__ = ["Shrunk", "shrink_network"]
