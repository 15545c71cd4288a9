"""paretorch: smaller networks, cheaper to train."""

from paretorch.core.plan import Plan
from paretorch.deploy import export, export_onnx, load, optimize, save
from paretorch.errors import PareError
from paretorch.methods.precision.activations import SMOLActivations
from paretorch.methods.precision.smol import SMOL
from paretorch.methods.sharing import SoftSharing, fold, layer_similarity
from paretorch.methods.sparsity.continuous import ContinuousSparsification
from paretorch.optim import AvaGrad, AvaGradW, DelayedAdam
from paretorch.public import compress, distillation_loss, shrink
from paretorch.report import report  # binds pt.report to the function, over the room of the same name
from paretorch.support import __version__ as __version__

__all__ = [
    "SMOL",
    "AvaGrad",
    "AvaGradW",
    "ContinuousSparsification",
    "DelayedAdam",
    "PareError",
    "Plan",
    "SMOLActivations",
    "SoftSharing",
    "compress",
    "distillation_loss",
    "export",
    "export_onnx",
    "fold",
    "layer_similarity",
    "load",
    "optimize",
    "report",
    "save",
    "shrink",
]
