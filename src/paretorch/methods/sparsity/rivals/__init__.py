"""The pruning methods that Continuous Sparsification is compared with, in the same harness."""

from paretorch.methods.sparsity.rivals.amc import AMC, harden_searched
from paretorch.methods.sparsity.rivals.hard_concrete import HardConcrete
from paretorch.methods.sparsity.rivals.magnitude import DNW, GradualMagnitude, MagnitudePruning
from paretorch.methods.sparsity.rivals.rigl import RigL
from paretorch.methods.sparsity.rivals.rival import harden_best
from paretorch.methods.sparsity.rivals.slimming import NetworkSlimming
from paretorch.methods.sparsity.rivals.st3 import ST3
from paretorch.methods.sparsity.rivals.stochastic import StochasticSparsification, drop_fallen
from paretorch.methods.sparsity.rivals.threshold import STR

__all__ = [
    "AMC",
    "DNW",
    "ST3",
    "STR",
    "GradualMagnitude",
    "HardConcrete",
    "MagnitudePruning",
    "NetworkSlimming",
    "RigL",
    "StochasticSparsification",
    "drop_fallen",
    "harden_best",
    "harden_searched",
]
