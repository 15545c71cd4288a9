"""paretorch: smaller networks, cheaper to train."""

from paretorch.core.plan import Plan
from paretorch.precision.smol import SMOL
from paretorch.public import compress
from paretorch.sparsity.continuous import ContinuousSparsification

__all__ = ["SMOL", "ContinuousSparsification", "Plan", "compress"]
