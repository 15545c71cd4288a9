"""The pruning methods that Continuous Sparsification is compared with, in the same harness."""

from paretorch.sparsity.rivals.amc import AMC, harden_searched
from paretorch.sparsity.rivals.gradual import GradualMagnitude
from paretorch.sparsity.rivals.hard_concrete import HardConcrete
from paretorch.sparsity.rivals.magnitude import MagnitudePruning
from paretorch.sparsity.rivals.sampling import harden_best
from paretorch.sparsity.rivals.slimming import NetworkSlimming
from paretorch.sparsity.rivals.st3 import ST3
from paretorch.sparsity.rivals.stochastic import StochasticSparsification, drop_fallen
from paretorch.sparsity.rivals.threshold import STR
from paretorch.sparsity.rivals.wirings import DNW

__all__ = [
    "AMC",
    "DNW",
    "ST3",
    "STR",
    "GradualMagnitude",
    "HardConcrete",
    "MagnitudePruning",
    "NetworkSlimming",
    "StochasticSparsification",
    "drop_fallen",
    "harden_best",
    "harden_searched",
]
