"""Files for inference runtimes, and `runtime=`, by which networks are trained on what these can store."""

from paretorch.deploy.runtimes.registry import RUNTIMES, Runtime, find_runtime
from paretorch.deploy.runtimes.restrict import restrict

__all__ = ["RUNTIMES", "Runtime", "find_runtime", "restrict"]
