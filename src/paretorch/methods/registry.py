"""Every method once: its name in recipes and on the command line, its class, and what the documentation says of it.

A new method joins by one entry here: recipes, `pare train --help`, docs/methods.md and the cases of tests/contract follow from it.
To write the page anew:

    python -m paretorch.methods.registry > docs/methods.md
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from paretorch.methods.precision.activations import SMOLActivations
from paretorch.methods.precision.activations_fixed import FixedActivations
from paretorch.methods.precision.rivals import BSQ, DSQ, LSQ, PACT, SLB, DoReFa, LQNets, PACTActivations, Uniform
from paretorch.methods.precision.shuffle import GivenPrecision
from paretorch.methods.precision.smol import SMOL
from paretorch.methods.sharing.soft import SoftSharing
from paretorch.methods.sparsity.continuous import ContinuousSparsification
from paretorch.methods.sparsity.rivals import (
    AMC,
    DNW,
    ST3,
    STR,
    GradualMagnitude,
    HardConcrete,
    MagnitudePruning,
    NetworkSlimming,
    RigL,
    StochasticSparsification,
)

Kind = Literal["sparsity", "precision", "activations", "sharing"]


@dataclass(frozen=True)
class Entry:
    """One method.

    Args:
        name: Its name in recipes and on the command line, unique within its kind.
        method: Its class; a frozen dataclass of options that `compress` takes.
        kind: What it decides.
        summary: One line.
        reference: Where it comes from.
        one_shot: Whether it prunes a network that is trained already, so that a recipe may have no epochs before rounding.
        drawn: Whether its masks are drawn, so that several are compared at rounding.
        learned: Whether precisions are learned under noise, of which a step may take several samples.
        trial: Options, beside its target, for a run of a dozen steps, such as the contract's: rates high enough to change something.
    """

    name: str
    method: Any
    kind: Kind
    summary: str
    reference: str
    one_shot: bool = False
    drawn: bool = False
    learned: bool = False
    trial: Mapping[str, Any] = field(default_factory=dict)


METHODS = (
    Entry(
        "cs",
        ContinuousSparsification,
        "sparsity",
        "soft masks, trained with the weights, rounded at the end",
        "chapter 4, Algorithm 1",
    ),
    Entry(
        "mp",
        MagnitudePruning,
        "sparsity",
        "the smallest weights, at once, after training",
        "Han et al., 2015",
        one_shot=True,
    ),
    Entry(
        "gmp",
        GradualMagnitude,
        "sparsity",
        "the smallest weights, little by little",
        "Zhu & Gupta, 2017",
        trial={"every": 2},
    ),
    Entry(
        "st3",
        ST3,
        "sparsity",
        "weights below a growing soft threshold, straight-through gradients",
        "Vanderschueren & De Vleeschouwer, 2023",
    ),
    Entry(
        "dnw",
        DNW,
        "sparsity",
        "the smallest weights of each layer, in the forward pass alone",
        "Wortsman et al., 2019",
    ),
    Entry(
        "rigl",
        RigL,
        "sparsity",
        "the smallest kept weights, replaced by those with the largest gradients",
        "Evci et al., 2020",
        trial={"every": 2},
    ),
    Entry(
        "str",
        STR,
        "sparsity",
        "weights below learned soft thresholds, one per layer",
        "Kusupati et al., 2020",
        trial={"init": -3.0},
    ),
    Entry("l0", HardConcrete, "sparsity", "stochastic hard-concrete gates", "Louizos et al., 2018", drawn=True),
    Entry(
        "slimming",
        NetworkSlimming,
        "sparsity",
        "the smallest learned scales under an ℓ₁ price",
        "Liu et al., 2017",
        trial={"penalty": 1e-3},
    ),
    Entry(
        "stochastic",
        StochasticSparsification,
        "sparsity",
        "Bernoulli masks, straight-through gradients",
        "chapter 4, Algorithm 4; after Zhou et al., 2019",
        drawn=True,
        trial={"lr": 1.0, "penalty": 1e-3},
    ),
    Entry(
        "amc",
        AMC,
        "sparsity",
        "the smallest weights of each layer, their share found by reinforcement learning",
        "He et al., 2018",
        one_shot=True,
    ),
    Entry(
        "smol",
        SMOL,
        "precision",
        "learned precisions, on target",
        "chapter 5, Definition 5.5 and Algorithm 5",
        learned=True,
    ),
    Entry(
        "smol-printed",
        SMOL,
        "precision",
        "learned precisions, where the penalty λ decides",
        "chapter 5, Algorithm 5",
        learned=True,
    ),
    Entry("uniform", Uniform, "precision", "the same bits everywhere, straight through", "the grid of chapter 5"),
    Entry("dorefa", DoReFa, "precision", "evenly spaced values of tanh(w)", "Zhou et al., 2016"),
    Entry("pact", PACT, "precision", "even values up to a clip from the moments (SAWB)", "Choi et al., 2019"),
    Entry("lsq", LSQ, "precision", "even steps of learned size", "Esser et al., 2020", trial={"lr": 0.1}),
    Entry("lqnets", LQNets, "precision", "sums of a learned basis", "Zhang et al., 2018"),
    Entry(
        "dsq",
        DSQ,
        "precision",
        "a learned range, gradients of a soft staircase",
        "Gong et al., 2019",
        trial={"lr": 1e-2},
    ),
    Entry("slb", SLB, "precision", "scores over values, annealed", "Yang et al., 2020", trial={"lr": 0.05}),
    Entry(
        "bsq",
        BSQ,
        "precision",
        "bit planes under a group lasso",
        "Yang et al., 2021",
        trial={"bits": 4, "penalty": 0.05, "adjustments": 3, "lr": 0.5},
    ),
    Entry(
        "given", GivenPrecision, "precision", "precisions of another run's artefact, kept or shuffled", "section 5.5.3"
    ),
    Entry("smol", SMOLActivations, "activations", "learned precisions, on target", "section 5.4", learned=True),
    Entry("pact", PACTActivations, "activations", "a learned range, from the first step on", "Choi et al., 2018"),
    Entry(
        "fixed",
        FixedActivations,
        "activations",
        "fixed levels, from rounding on",
        "the thesis' ImageNet recipe, after BSQ",
    ),
    Entry("soft", SoftSharing, "sharing", "weights of layers as mixtures of common templates", "chapter 3"),
)


def entries(kind: Kind) -> dict[str, Entry]:
    """The methods of one kind, by name."""
    return {entry.name: entry for entry in METHODS if entry.kind == kind}


# How a recipe chooses among the methods of a kind.
_CHOSEN_BY = {
    "sparsity": ("Sparsity: which weights to drop", "`--pruning NAME`, options by `--set sparsity_options.NAME=VALUE`"),
    "precision": (
        "Precision: how many bits per weight",
        "`--quantization NAME`, options by `--set precision_options.NAME=VALUE`",
    ),
    "activations": (
        "Activations: how many bits per activation",
        "`--activations NAME`, options by `--set activation_options.NAME=VALUE`",
    ),
    "sharing": ("Sharing: which layers have one weight", "options by `--set sharing_options.NAME=VALUE`"),
}


def page() -> str:
    """The page docs/methods.md: a table per kind."""
    lines = [
        "# Methods",
        "",
        "<!-- Written by `python -m paretorch.methods.registry > docs/methods.md`; edit the registry, not this page. -->",
        "",
        "All methods that `pare train` takes. In code, pass an instance of the class to `compress`.",
    ]
    for kind, (title, chosen) in _CHOSEN_BY.items():
        lines += ["", f"## {title}", "", f"On the command line: {chosen}.", ""]
        lines += ["| name | class | what it does | reference |", "|---|---|---|---|"]
        lines += [
            f"| `{one.name}` | `{one.method.__module__}.{one.method.__name__}` | {one.summary} | {one.reference} |"
            for one in METHODS
            if one.kind == kind
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
