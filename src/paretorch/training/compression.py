"""From a recipe's targets to the plan that meets them, and to the moment when its decisions are rounded.

Beside the method's own, `precision_options` may have, for smol, `samples`: K of Definition 5.5, where every batch is taken in
K parts, each with noise of its own, at the cost of one batch (batch norm sees a part at a time); for its rivals, `ends`: bits of the first and the last
layer; and for given, `source`: the artefact, and `shuffled`: whether its precisions are permuted within each layer.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from paretorch.errors import ConfigError
from paretorch.methods.registry import entries
from paretorch.methods.sharing.soft import SoftSharing
from paretorch.training.norms import meter_of
from paretorch.training.recipe import LEARNED, Recipe
from paretorch.training.tasks import Task, first_batches

if TYPE_CHECKING:
    from paretorch.core.plan import Plan

_SUMMARY = len('"summary":{"accuracy":0.1234},')  # what `finish` adds to the file beside the network
SAMPLED_MASKS = tuple(name for name, entry in entries("sparsity").items() if entry.drawn)
_JUDGED_BATCHES = 16  # training batches by which drawn masks are compared


def attach(model: nn.Module, recipe: Recipe, *, steps: int, example: Tensor) -> "Plan | None":
    """The plan of the recipe's targets, or None for a dense run."""
    if not recipe.compresses:
        return None
    from paretorch.core.compress import compress

    methods = _methods(recipe, model)
    steps = max(steps, 1)  # none where a trained network is pruned right away
    example = (
        example.float() if isinstance(example, Tensor) and example.is_floating_point() else example
    )  # as the weights are, outside of autocast
    budget = recipe.compression.budget
    meter = None if budget is None else meter_of(model, recipe.compression.norms, _SUMMARY)
    return compress(model, *methods, steps=steps, example=example, budget=budget, seed=recipe.seed, meter=meter)


def harden(plan: "Plan", optimizer: torch.optim.Optimizer, task: Task, recipe: Recipe) -> None:
    """Round the decisions as the recipe's method asks for.

    Masks that are drawn: several are, and the one with the lowest loss on some training batches stays; neither test nor
    validation images decide. amc: the shares of the layers are searched by the accuracy on the validation images.
    """
    plan.model.eval()
    if recipe.compression.pruning in SAMPLED_MASKS:
        from paretorch.methods.sparsity.rivals import harden_best

        harden_best(plan, _judge(task, recipe.epochs), optimizer=optimizer)
    elif recipe.compression.pruning == "amc":
        from paretorch.methods.sparsity.rivals import harden_searched

        harden_searched(
            plan, lambda model: task.evaluate(model)["test_accuracy"], task.example(), recipe.seed, optimizer
        )
    else:
        plan.harden(optimizer)


def _methods(recipe: Recipe, model: nn.Module) -> list[Any]:
    """The methods that the recipe asks for; a byte budget alone leaves the trade between zeros and bits to the plan."""
    asked = recipe.compression
    leave_out: Mapping[str, Sequence[str]] = getattr(model, "leave_out", {})
    methods: list[Any] = []
    if recipe.shares:
        own = getattr(model, "sharing", {"exclude": tuple(leave_out.get("sharing", ()))})
        methods.append(_made(SoftSharing, {**own, **(asked.sharing_options or {})}, "sharing_options"))
    if (name := asked.pruning_method) is not None:
        left = tuple(leave_out.get("sparsity", ()))
        options = {"target": asked.sparsity, "exclude": left, **asked.sparsity_options}
        methods.append(_made(entries("sparsity")[name].method, options, "sparsity_options"))
    if (name := asked.quantization_method) is not None:
        options = _precision_options(name, recipe, model, tuple(leave_out.get("precision", ())))
        methods.append(_made(entries("precision")[name].method, options, "precision_options"))
    if (name := asked.activation_method) is not None:
        bits = asked.activation_bits
        target = {"target_bits": bits} if name == "smol" else {"bits": _whole(bits, name)}
        options = {**target, "exclude": tuple(leave_out.get("activations", ())), **(asked.activation_options or {})}
        methods.append(_made(entries("activations")[name].method, options, "activation_options"))
    return methods


def _precision_options(name: str, recipe: Recipe, model: nn.Module, left: tuple[str, ...]) -> dict[str, Any]:
    bits = recipe.compression.bits
    options: dict[str, Any] = {"exclude": left, **recipe.compression.precision_options}
    if name in LEARNED:
        options.pop("samples", None)  # the loop's
    if name == "smol":
        return {
            "target_bits": bits,
            "scale": "auto",
            **options,
        }  # a recipe trains from scratch, if nothing else is asked for
    if name == "smol-printed":
        return {"init_bits": bits, "scale": "fit", **options}
    if name == "given":
        if bits is not None:
            raise ConfigError("The quantization 'given' takes its bits from precision_options.source: leave bits out")
        source, shuffled = options.pop("source", None), options.pop("shuffled", False)
        return {**options, "precisions": _precisions(source, shuffled, recipe.seed)}
    if bits is not None:
        options["bits"] = _whole(bits, name)
    if (ends := options.pop("ends", None)) is not None:
        from paretorch.methods.precision.rivals import first_and_last

        given = options.get("overrides") or {}
        if isinstance(given, Mapping):  # otherwise the method refuses it
            options["overrides"] = {**first_and_last(model, ends, options["exclude"] or ()), **given}
    return options


def _whole(bits: float | None, name: str) -> int | None:
    if bits is not None and not float(bits).is_integer():
        raise ConfigError(f"{name} gives the same whole number of bits everywhere, not {bits:g}: use 2, say, or smol")
    return None if bits is None else int(bits)


def _precisions(source: Any, shuffled: Any, seed: int) -> Any:
    """The precisions of an artefact, as they are or permuted within each layer."""
    from paretorch.deploy.artefact import open_artefact
    from paretorch.methods.precision.shuffle import precision_map

    if not isinstance(source, str):
        raise ConfigError("The quantization 'given' needs precision_options.source, the model.pare of a run with smol")
    network, head = open_artefact(source)
    found = precision_map(network, head.get("edits", ()))
    return found.shuffled(seed) if shuffled else found


def _made(method: Any, options: dict[str, Any], where: str) -> Any:
    """The method with these options; None is its default, and a list (from JSON or TOML) is a tuple."""
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    try:
        return method(**{name: value for name, value in given.items() if value is not None})
    except TypeError as error:
        raise ConfigError(f"{where}: {error}") from error


def _judge(task: Task, epoch: int) -> Callable[[nn.Module], float]:
    """Minus the loss on some batches of an epoch that was not trained on."""
    batches = first_batches(task, epoch, _JUDGED_BATCHES)

    def score(model: nn.Module) -> float:
        with torch.no_grad():
            losses = [task.loss(model, tuple(part[i] for part in batches))[0] for i in range(len(batches[0]))]
        return -float(torch.stack(losses).mean())

    return score
