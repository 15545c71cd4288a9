"""Loading networks in applications: `from paretorch.runtime import load`.

It is `paretorch.load`, and imports neither the methods nor the training loop. Entropy-coded files need constriction, which is imported when
such a file is read.
"""

from paretorch.deploy.artefact import load

__all__ = ["load"]
