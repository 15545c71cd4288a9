"""The optimizers of thesis chapter 6: adaptive methods that converge, and AvaGrad, whose α and ε are tuned independently.

One file per optimizer; `base.py` is the step they share and `kernels/` how it is computed.
"""

from paretorch.optim.annealed_adam import AnnealedAdam
from paretorch.optim.avagrad import AvaGrad
from paretorch.optim.avagradw import AvaGradW
from paretorch.optim.delayed_adam import DelayedAdam

__all__ = ["AnnealedAdam", "AvaGrad", "AvaGradW", "DelayedAdam"]
