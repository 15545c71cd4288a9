"""From a recipe's targets to the plan that meets them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from paretorch.errors import ConfigError
from paretorch.training.recipe import Recipe

if TYPE_CHECKING:
    from paretorch.core.plan import Plan

_SUMMARY = len('"summary":{"accuracy":0.1234},')  # what `finish` adds to the file beside the network


def attach(model: nn.Module, recipe: Recipe, *, steps: int, example: Tensor) -> "Plan | None":
    """The plan of the recipe's targets, or None for a dense run."""
    if not recipe.compresses:
        return None
    import paretorch

    methods = _methods(recipe, getattr(model, "leave_out", {}))
    budget = None if recipe.budget is None else max(recipe.budget - _SUMMARY, 1)
    return paretorch.compress(model, *methods, steps=steps, example=example, budget=budget, seed=recipe.seed)


def _methods(recipe: Recipe, leave_out: Mapping[str, Sequence[str]]) -> list[Any]:
    """What is asked for; a byte budget alone leaves the trade between zeros and bits to the plan."""
    import paretorch

    budget_alone = recipe.sparsity is None and recipe.bits is None
    methods: list[Any] = []
    if recipe.sparsity is not None or budget_alone:
        left = tuple(leave_out.get("sparsity", ()))
        options = {"target": recipe.sparsity, "exclude": left, **recipe.sparsity_options}
        methods.append(_made(paretorch.ContinuousSparsification, options, "sparsity_options"))
    if recipe.bits is not None or budget_alone:
        left = tuple(leave_out.get("precision", ()))
        options = {"target_bits": recipe.bits, "exclude": left, **recipe.precision_options}
        methods.append(_made(paretorch.SMOL, options, "precision_options"))
    return methods


def _made(method: Any, options: dict[str, Any], where: str) -> Any:
    """The method with these options; None is its default, and a list (from JSON or TOML) is a tuple."""
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    try:
        return method(**{name: value for name, value in given.items() if value is not None})
    except TypeError as error:
        raise ConfigError(f"{where}: {error}.") from error
