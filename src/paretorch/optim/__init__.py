"""Optimizers of thesis chapter 6: adaptive methods that converge, and AvaGrad, whose α and ε are tuned apart."""

from paretorch.optim.annealed_adam import AnnealedAdam
from paretorch.optim.avagrad import AvaGrad
from paretorch.optim.avagradw import AvaGradW
from paretorch.optim.delayed_adam import DelayedAdam

__all__ = ["AnnealedAdam", "AvaGrad", "AvaGradW", "DelayedAdam"]
