"""`pare train --dry-run`: what would be trained and how small it would get, before any training."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor, nn

from paretorch.cli.expected import expected_bytes
from paretorch.training.recipe import Recipe
from paretorch.training.runtime import Runtime

if TYPE_CHECKING:
    from paretorch.core.plan import Plan
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
    from paretorch.core.attach.weights import chains_of

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
