"""paretorch: smaller networks, cheaper to train.

Names are imported when they are first used, so that an application which only loads a network does not import the methods.
"""

from typing import TYPE_CHECKING

from paretorch.support import __version__ as __version__
from paretorch.support.lazy_names import import_lazily

if TYPE_CHECKING:
    from paretorch.core.plan import Plan
    from paretorch.deploy import export, export_onnx, load, optimize, save
    from paretorch.errors import PareError
    from paretorch.methods.precision.activations import SMOLActivations
    from paretorch.methods.precision.smol import SMOL
    from paretorch.methods.sharing import SoftSharing, fold, layer_similarity
    from paretorch.methods.sparsity.continuous import ContinuousSparsification
    from paretorch.optim import AvaGrad, AvaGradW, DelayedAdam
    from paretorch.public import compress, distillation_loss, shrink
    from paretorch.report import report

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

import_lazily(
    __name__,
    {
        "core.plan": ("Plan",),
        "deploy": ("export", "export_onnx", "load", "optimize", "save"),
        "errors": ("PareError",),
        "methods.precision.activations": ("SMOLActivations",),
        "methods.precision.smol": ("SMOL",),
        "methods.sharing": ("SoftSharing", "fold", "layer_similarity"),
        "methods.sparsity.continuous": ("ContinuousSparsification",),
        "optim": ("AvaGrad", "AvaGradW", "DelayedAdam"),
        "public": ("compress", "distillation_loss", "shrink"),
        "report": ("report",),  # the function, over the room of the same name
    },
)
