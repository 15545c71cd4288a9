"""How large the file of a run will be, before it is trained."""

import warnings
from typing import TYPE_CHECKING

import torch
from torch import nn

from paretorch.errors import UndecidedWarning
from paretorch.training.recipe import Recipe

if TYPE_CHECKING:
    from paretorch.training.run import Setup

_APART = 0.2  # of decisions; estimates of nine ResNet-20 runs by CS and SMOL are then 2 % below to 10 % above the files, of one by LSQ 17 % below


def expected_bytes(recipe: Recipe, setup: "Setup") -> list[str]:
    """The size of the artefact if the network were rounded now, as one that has been trained would be; uses the setup up."""
    from paretorch import deploy
    from paretorch.training.finish import leave
    from paretorch.training.norms import fold_norms

    _scatter(setup.model)
    if setup.plan is None:
        return [f"expected bytes  {deploy.sizes(setup.model).total:,} (dense)"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndecidedWarning)  # nothing has been searched for yet
        setup.plan.harden()
    reached = setup.plan.metrics()
    small = leave(setup.plan)
    if recipe.compression.norms is not None:
        fold_norms(small, recipe.compression.norms)
    sizes = deploy.sizes(small)
    share = f"{100 * sizes.total / sizes.dense:.1f} %"
    lines = [f"expected bytes  {sizes.total:,} of {sizes.dense:,} as plain tensors ({share})"]
    if recipe.compression.budget is not None:
        zeros = [f"{100 * reached['sparsity']:.1f} % zeros"] if "sparsity" in reached else []
        bits = [f"{reached['bits']:.2f} bits per weight"] if "bits" in reached else []
        lines.append(f"in the budget   {', '.join(zeros + bits)}")
    return lines


def _scatter(model: nn.Module) -> None:
    """Make what is alike at the start as different as training does.

    Decisions that are all the same would be told apart by their place, and vectors of ones and zeros by one number: both
    cost a file next to nothing. The rivals of SMOL decide nothing of that kind: theirs are steps and numbers of bits.
    """
    from paretorch.core.attach.weights import chains_of
    from paretorch.core.finish.byte_budget import as_trained
    from paretorch.methods.precision.rivals.rival import Quantized

    generator = torch.Generator().manual_seed(0)
    chains = [chain for module in model.modules() for chain, _ in chains_of(module)]
    found = [one for chain in chains for one in chain.relaxations() if one.room in ("sparsity", "precision")]
    decisions = {id(one.decision): one.decision for one in found if not isinstance(one, Quantized)}
    kept = {id(one.decision) for one in found}
    with torch.no_grad():
        for decision in decisions.values():
            decision.add_(_APART * torch.randn(decision.shape, generator=generator).to(decision))
        rest = [tensor for tensor in (*model.parameters(), *model.buffers()) if id(tensor) not in kept]
        for tensor, likely in zip(rest, as_trained(rest), strict=True):
            tensor.copy_(likely)
