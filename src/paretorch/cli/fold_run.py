"""What `pare fold` reads of a run: its network with its plan, from the checkpoint (or, without one, what its artefact
still says about sharing), how alike the layers were while it was trained, and inputs that it was trained with."""

import ast
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from paretorch.core.compress import compress
from paretorch.core.method import Method
from paretorch.core.relaxation import PREFIX
from paretorch.errors import ArtefactError, ConfigError, PareError

if TYPE_CHECKING:
    from paretorch.training.recipe import Recipe
    from paretorch.training.task import Task

Matrix = list[list[float]]
_NOT_SHARED = "the network of {} shares no templates: train it with SoftSharing"


def shared_network(folder: Path, root: str | None = None) -> nn.Module:
    """The zoo network of a run that shares, as its last checkpoint has it, on the CPU; `Plan.of` finds its plan.

    Of a run without a checkpoint, the network of model.pare, which has no plan.

    root: of the data, which are asked how large the vocabulary of an unfinished run is.
    """
    from paretorch import zoo
    from paretorch.cli.inputs import SHAPES
    from paretorch.training.checkpoint import Checkpoint
    from paretorch.training.recipe_keys import by_place
    from paretorch.training.tasks.language import CARRIED

    path = folder / "checkpoint.pt"
    if not path.exists() and (folder / "model.pare").exists():
        return _of_artefact(folder)
    if not path.exists():
        raise ConfigError(f"{folder} holds no checkpoint.pt and no model.pare: give the folder of a run")
    checkpoint = Checkpoint.load(path, torch.device("cpu"))
    try:
        fields = by_place(checkpoint.recipe)
        network: nn.Module = zoo.build(fields["network"], **_options(folder, fields, root))
        config = checkpoint.model.get(f"{PREFIX}config")
        plan = json.loads(bytes(config.tolist())) if config is not None else {}
        steps, seed = plan.pop("steps", 1), plan.pop("seed", 0)
    except (KeyError, ValueError, AttributeError) as error:
        raise ArtefactError(f"{path} is not the checkpoint of a run of this version") from error
    if "sharing" not in plan:
        raise ConfigError(_NOT_SHARED.format(folder))
    methods = [_class(one)(**_fields(one)) for one in plan.values()]
    example = None
    if any(method.on_activations for method in methods):
        example = torch.zeros(1, *SHAPES.get(fields.get("data.name", ""), (1,)))
    compress(network, *methods, steps=steps, seed=seed, example=example)
    try:
        network.load_state_dict({key: value for key, value in checkpoint.model.items() if key != CARRIED})
    except RuntimeError as error:
        raise ArtefactError(f"{path} does not fit the network that its configuration names") from error
    return network.eval()


def _of_artefact(folder: Path) -> nn.Module:
    from paretorch.deploy import load
    from paretorch.methods.sharing.layers import read_banks

    network = load(folder / "model.pare").eval()
    banks = read_banks(network)
    if not banks:
        raise ConfigError(_NOT_SHARED.format(folder))
    if all(bank.unfolded for bank in banks):
        raise ConfigError(
            f"{folder} has no checkpoint.pt, and its model.pare stores every layer itself, not how alike they are: "
            "fold a run whose checkpoint is there"
        )
    return network


def kept_similarities(run: Path, beside: Sequence[Path], sizes: Sequence[int]) -> dict[str, list[Matrix]]:
    """A matrix for each group of layers (of these sizes) by epoch of the run, or by run where there are several.

    Empty where the run kept none: it was trained by an earlier version, or not by `pare train`.
    """
    from paretorch.training.folder import read_history

    rows = {one: [row for row in read_history(one) if "similarities" in row] for one in (run, *beside)}
    if not beside:
        return {f"epoch {row['epoch']}": row["similarities"] for row in rows[run]}
    for one, kept in rows.items():
        if not kept:
            raise ConfigError(
                f"{one} kept no similarities: name the folders of runs that were trained with SoftSharing"
            )
        if [len(matrix) for matrix in kept[-1]["similarities"]] != list(sizes):
            raise ConfigError(f"{one} has other groups of layers than {run}: name runs of one network")
    plain = len({one.resolve().name for one in rows}) == len(rows)  # else their folders tell them apart
    return {one.resolve().name if plain else str(one): kept[-1]["similarities"] for one, kept in rows.items()}


def batches(run: Path, root: str | None, device: torch.device, count: int) -> Iterator[Tensor]:
    """Inputs of training batches of the run; the data are not looked for until the first is asked for."""
    try:
        recipe, task, _ = _chosen(run, root, device)
    except PareError as error:
        raise type(error)(f"{str(error).rstrip('.')}; or keep batch norm as it is: --recalibrate 0") from error
    yield from inputs_of(task, recipe, count)


def inputs_of(task: "Task", recipe: "Recipe", count: int) -> list[Tensor]:
    """Inputs of the last training epoch, in the precision of the weights; none of a task that cannot tell them."""
    inputs = getattr(task, "inputs", None)
    return [] if inputs is None else [one.float() for one in inputs(max(0, recipe.epochs - 1), count)]


def _options(folder: Path, recipe: dict[str, Any], root: str | None) -> dict[str, Any]:
    """Options of the network: of a finished run those in its artefact, else those of the recipe (by place) and its data."""
    from paretorch.deploy.artefact import open_artefact

    if (folder / "model.pare").exists() and "zoo" in (head := open_artefact(folder / "model.pare")[1]):
        return dict(head["zoo"][1])
    if recipe.get("data.name") in ("ptb", "ptb-char", "multi30k"):
        suited = _chosen(folder, root, torch.device("cpu"))[2]
    else:
        suited = {"classes": 100} if recipe.get("data.name") == "cifar100" else {}
    return {**suited, **(recipe.get("network_options") or {})}


def _chosen(run: Path, root: str | None, device: torch.device) -> "tuple[Recipe, Task, dict[str, Any]]":
    from paretorch.cli.inputs import recipe_of
    from paretorch.training.runtime import Runtime
    from paretorch.training.tasks.choose import choose

    recipe = recipe_of(run)
    return recipe, *choose(recipe, Runtime(root=root), device)


def _class(fields: dict[str, str]) -> type[Method]:
    from paretorch.methods.registry import METHODS

    name = fields["method"]
    for entry in METHODS:
        if name == entry.method.__name__:
            found: type[Method] = entry.method
            return found
    raise ConfigError(f"the network was trained with {name} too: fold it in Python, before finalize")


def _fields(fields: dict[str, str]) -> dict[str, Any]:
    try:
        return {name: ast.literal_eval(value) for name, value in fields.items() if name != "method"}
    except (ValueError, SyntaxError) as error:
        raise ConfigError(
            "the run was trained with functions as options: fold it in Python, before finalize"
        ) from error
