"""The methods that a recipe names.

`pruning` names the method that drops weights:

    cs          Continuous Sparsification         dnw         discovering neural wirings
    mp          one-shot magnitude pruning        str         learned soft thresholds
    gmp         gradual magnitude pruning         l0          hard-concrete gates
    st3         straight-through soft thresholds  slimming    Network Slimming, weight by weight
    stochastic  straight-through Bernoulli masks  amc         shares of the layers by reinforcement learning

`quantization` names the method that gives bits:

    smol          learned precisions, on target      smol-printed  the same, where λ decides (Algorithm 5)
    uniform       equal bits, straight through       dorefa        evenly spaced values of tanh(w)
    pact          a clip from the moments (SAWB)     lsq           learned steps
    lqnets        learned bases                      dsq           a soft staircase for gradients
    slb           scores over values, annealed       bsq           bit planes under a group lasso
    given         precisions of another run's artefact

`activations` names the method that gives bits to the outputs of activation modules:

    smol          learned precisions, on target      pact          a learned range, from the first step on
    fixed         from rounding on (the ImageNet recipe)
"""

from typing import Any


def pruning_methods() -> dict[str, Any]:
    """The classes behind the names of `pruning`."""
    import paretorch
    from paretorch.methods.sparsity import rivals

    return {
        "cs": paretorch.ContinuousSparsification,
        "mp": rivals.MagnitudePruning,
        "gmp": rivals.GradualMagnitude,
        "st3": rivals.ST3,
        "dnw": rivals.DNW,
        "str": rivals.STR,
        "l0": rivals.HardConcrete,
        "slimming": rivals.NetworkSlimming,
        "stochastic": rivals.StochasticSparsification,
        "amc": rivals.AMC,
    }


def quantization_methods() -> dict[str, Any]:
    """The classes behind the names of `quantization`."""
    import paretorch
    from paretorch.methods.precision import rivals
    from paretorch.methods.precision.shuffle import GivenPrecision

    return {
        "smol": paretorch.SMOL,
        "smol-printed": paretorch.SMOL,
        "uniform": rivals.Uniform,
        "dorefa": rivals.DoReFa,
        "pact": rivals.PACT,
        "lsq": rivals.LSQ,
        "lqnets": rivals.LQNets,
        "dsq": rivals.DSQ,
        "slb": rivals.SLB,
        "bsq": rivals.BSQ,
        "given": GivenPrecision,
    }


def activation_methods() -> dict[str, Any]:
    """The classes behind the names of `activations`."""
    from paretorch.methods.precision import rivals
    from paretorch.methods.precision.activations import SMOLActivations
    from paretorch.methods.precision.activations_fixed import FixedActivations

    return {"smol": SMOLActivations, "pact": rivals.PACTActivations, "fixed": FixedActivations}
