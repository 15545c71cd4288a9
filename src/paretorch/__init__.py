"""paretorch: smaller networks, cheaper to train."""

from paretorch.core.plan import Plan
from paretorch.deploy import export_onnx, load, report, save
from paretorch.errors import PareError
from paretorch.optim import AvaGrad, AvaGradW, DelayedAdam
from paretorch.precision.activations import SMOLActivations
from paretorch.precision.smol import SMOL
from paretorch.public import compress
from paretorch.sparsity.continuous import ContinuousSparsification

__version__ = "0.1.0"

__all__ = [
    "SMOL",
    "AvaGrad",
    "AvaGradW",
    "ContinuousSparsification",
    "DelayedAdam",
    "PareError",
    "Plan",
    "SMOLActivations",
    "compress",
    "export_onnx",
    "load",
    "report",
    "save",
]
