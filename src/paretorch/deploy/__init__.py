"""A finalized network as a file: small on disk, measured honestly, exported to other runtimes."""

from paretorch.deploy.artefact import encoded_size, load, save, sizes
from paretorch.deploy.sizes import Sizes, TensorSize

__all__ = ["Sizes", "TensorSize", "encoded_size", "load", "save", "sizes"]
