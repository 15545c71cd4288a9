"""The optimizers of thesis chapter 6: adaptive methods that converge, and AvaGrad, whose α and ε are tuned independently.

`avagrad.py` and `adam.py` have two optimizers each; `base.py` is the step they share and `kernels/` how it is computed.
"""

from paretorch.optim.adam import AnnealedAdam, DelayedAdam
from paretorch.optim.avagrad import AvaGrad, AvaGradW

__all__ = ["AnnealedAdam", "AvaGrad", "AvaGradW", "DelayedAdam"]
