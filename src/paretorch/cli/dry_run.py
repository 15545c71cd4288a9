"""`pare train --dry-run`: what would be trained and how small it would get, before any training."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor, nn

from paretorch.training.recipe import Recipe
from paretorch.training.runtime import Runtime

if TYPE_CHECKING:
    from paretorch.core.plan import Plan
    from paretorch.training.run import Setup
import warnings

import torch

from paretorch.errors import UndecidedWarning

if TYPE_CHECKING:
    from paretorch.training.run import Setup


def show_plan(recipe: Recipe, runtime: Runtime) -> None:
    """Print layers, groups, parameters, steps and expected bytes."""
    from rich.console import Console
    from rich.table import Table

    from paretorch.training.run import prepare

    setup = prepare(recipe, runtime)
    console = Console()
    table = Table(title=f"{recipe.network} on {recipe.data.name}")
    for column in ("layer", "shape", "weights", "sparsity groups", "precision groups"):
        table.add_column(column, justify="left" if column == "layer" else "right")
    for name, weight, groups in _layers(setup.model):
        shape = "×".join(str(size) for size in weight.shape)
        counts = [f"{groups[room]:,}" if room in groups else "-" for room in ("sparsity", "precision")]
        table.add_row(name, shape, f"{weight.numel():,}", *counts)
    console.print(table)
    for line in _totals(recipe, setup):
        console.print(line, highlight=False, soft_wrap=True)


def _layers(model: nn.Module) -> Iterator[tuple[str, Tensor, dict[str, int]]]:
    """Every weight of two or more dimensions once, with the number of decisions of each room on it."""
    from paretorch.core.attach.parametrize import chains_of

    seen: set[int] = set()
    for name, module in model.named_modules():
        # The decisions of a weight are modules themselves, below "parametrizations": no layers.
        if "parametrizations" in name.split("."):
            continue
        decided = {id(weight): chain.relaxations() for chain, weight in chains_of(module)}
        weights = [weight for _, weight in chains_of(module)]
        weights += [weight for weight in module.parameters(recurse=False) if weight.ndim > 1]
        for weight in weights:
            if id(weight) not in seen:
                seen.add(id(weight))
                yield name, weight, {each.room: each.decision.numel() for each in decided.get(id(weight), [])}


def _totals(recipe: Recipe, setup: "Setup") -> list[str]:
    weights = list(_layers(setup.model))
    chosen = sum(weight.numel() for _, weight, groups in weights if groups)
    every = _parameters(setup.model, setup.plan)
    steps = setup.task.steps
    tuned = f", then {recipe.finetune} to fine-tune" if recipe.finetune else ""
    lines = [
        f"parameters      {every:,}, of which {chosen:,} are decided on",
        f"steps           {recipe.epochs * steps:,} ({recipe.epochs} epochs of {steps}{tuned})",
        f"device          {setup.device}",
    ]
    return [*lines, *expected_bytes(recipe, setup)]


def _parameters(model: nn.Module, plan: "Plan | None") -> int:
    if plan is None:
        return sum(weight.numel() for weight in model.parameters())
    return sum(weight.numel() for group in plan.param_groups() for weight in group["params"])


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
    from paretorch.core.attach.parametrize import chains_of
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
