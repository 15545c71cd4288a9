"""`pare fold`."""

import ast
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer
from torch import Tensor, nn

from paretorch.cli.finished import DEFAULT, FLAGS, HELP, Finished, find_finished
from paretorch.cli.inputs import SHAPES, recipe_of
from paretorch.cli.recipe_flags import RecipeFields, recipe_flags
from paretorch.core.compress import compress
from paretorch.core.method import Method
from paretorch.core.relaxation import PREFIX
from paretorch.errors import ArtefactError, ConfigError, PareError
from paretorch.report.charts import Curve, curves
from paretorch.report.markup import save
from paretorch.training.folder import environment
from paretorch.training.networks import build_network, is_zoo
from paretorch.training.progress import format_metric, headline
from paretorch.training.run import choose_device
from paretorch.training.runtime import Runtime
from paretorch.training.tasks.choose import choose
from paretorch.training.tasks.choose_disk import has_own_task
from paretorch.workflows.folding_curve import Folded, folding_curve

if TYPE_CHECKING:
    from paretorch.training.recipe import Recipe
    from paretorch.training.tasks import Task

Matrix = list[list[float]]
_NOT_SHARED = "the network of {} shares no templates: train it with SoftSharing"


def shared_network(folder: Path, root: str | None = None, flags: RecipeFields | None = None) -> nn.Module:
    """The network of a run that shares, as its last checkpoint has it, on the CPU; `Plan.of` finds its plan.

    Of a run without a checkpoint, the network of model.pare, which has no plan.

    root: of the data, which are asked how large the vocabulary of an unfinished run is. flags: what the command line says of a
    user's own network.
    """
    from paretorch.training.checkpoint import Checkpoint
    from paretorch.training.recipe_values import by_place
    from paretorch.training.tasks.language import CARRIED

    path = folder / "checkpoint.pt"
    if not path.exists() and (folder / "model.pare").exists():
        return _of_artefact(find_finished(folder, flags or {}, root))
    if not path.exists():
        raise ConfigError(f"{folder} holds no checkpoint.pt and no model.pare: give the folder of a run")
    checkpoint = Checkpoint.load(path, torch.device("cpu"))
    try:
        fields = by_place(checkpoint.recipe, flags or {})
        network = build_network(fields["network"], *_options(folder, fields, root))
        config = checkpoint.model.get(f"{PREFIX}config")
        plan = json.loads(bytes(config.tolist())) if config is not None else {}
        steps, seed = plan.pop("steps", 1), plan.pop("seed", 0)
    except PareError:
        raise
    except (KeyError, ValueError, AttributeError) as error:
        raise ArtefactError(f"{path} is not the checkpoint of a run of this version") from error
    if "sharing" not in plan:
        raise ConfigError(_NOT_SHARED.format(folder))
    methods = [_class(one)(**_fields(one)) for one in plan.values()]
    example = None
    if any(method.on_activations for method in methods):
        data = str(fields.get("data.name"))
        own = find_finished(folder, flags or {}, root)
        example = own.example(None, 1) if has_own_task(data) else torch.zeros(1, *SHAPES.get(data, (1,)))
    compress(network, *methods, steps=steps, seed=seed, example=example)
    try:
        network.load_state_dict({key: value for key, value in checkpoint.model.items() if key != CARRIED})
    except RuntimeError as error:
        raise ArtefactError(f"{path} does not fit the network that its configuration names") from error
    return network.eval()


def _of_artefact(found: Finished) -> nn.Module:
    from paretorch.methods.sharing.layers import read_banks

    folder, network = found.path.parent, found.network()
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


def batches(run: Path, root: str | None, device: torch.device, count: int) -> Iterator[Any]:
    """Inputs of training batches of the run; the data are not looked for until the first is asked for."""
    try:
        recipe, task, _ = _chosen(run, root, device)
    except PareError as error:
        raise type(error)(f"{str(error).rstrip('.')}; or keep batch norm as it is: --recalibrate 0") from error
    yield from inputs_of(task, recipe, count)


def inputs_of(task: "Task", recipe: "Recipe", count: int) -> list[Any]:
    """Inputs of the last training epoch, in the precision of the weights; none if the task has no `inputs`."""
    inputs = getattr(task, "inputs", None)
    found = [] if inputs is None else inputs(max(0, recipe.epochs - 1), count)
    return [one.float() if isinstance(one, Tensor) and one.is_floating_point() else one for one in found]


def _options(folder: Path, recipe: dict[str, Any], root: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of the network that its run gave, or its artefact has, and what follows from the data; the recipe is by place."""
    from paretorch.deploy.artefact import open_artefact

    if (folder / "model.pare").exists() and "zoo" in (head := open_artefact(folder / "model.pare")[1]):
        return dict(head["zoo"][1]), {}
    data = str(recipe.get("data.name"))
    if data in ("ptb", "ptb-char", "multi30k") or has_own_task(data) or not is_zoo(str(recipe["network"])):
        suited = _chosen(folder, root, torch.device("cpu"))[2]
    else:
        suited = {"classes": 100} if data == "cifar100" else {}
    return recipe.get("network_options") or {}, suited


def _chosen(run: Path, root: str | None, device: torch.device) -> "tuple[Recipe, Task, dict[str, Any]]":

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


@recipe_flags(
    *FLAGS,
    help={**HELP, "data": "The data of the run, if they are a user's code."},
    default={**DEFAULT, "data": "that of the run"},
)
def fold(
    run: Annotated[Path, typer.Argument(help="The folder of a run that was trained with SoftSharing.")],
    *,
    flags: RecipeFields,
    threshold: Annotated[
        float | None, typer.Option(help="The least similarity of layers that become one.", show_default="0.95")
    ] = None,
    layers: Annotated[int | None, typer.Option(help="Or how many of the sharing layers stay, in all.")] = None,
    only: Annotated[str | None, typer.Option(help="Fold the groups with a layer of this name or pattern.")] = None,
    curve: Annotated[
        bool, typer.Option("--curve", help="Fold one layer further at a time, and measure each time.")
    ] = False,
    beside: Annotated[
        list[Path] | None, typer.Option(help="Another run (again for more): similarities.html over runs, not epochs.")
    ] = None,
    recalibrate: Annotated[
        int,
        typer.Option(
            min=0, help="Training batches to estimate batch norm anew with, where a fold is not exact. 0: keep it."
        ),
    ] = 20,
    root: Annotated[str | None, typer.Option(help="Folder of the data sets.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")] = "auto",
) -> None:
    """Fold layers that have become alike into loops: folded.pare and folding.html in the run's folder.

    The diagrams go into report.html too. Beside them similarities.html, how alike the layers became over the epochs. With --curve: folding.json, folding.svg and folding-threshold.svg there (folding-stages.1.json … with --only "stages.1.*"), what the network loses by the layers that are left and by their similarity.

    Examples:

        pare fold runs/swrn --threshold 0.9

        pare fold runs/swrn --only "stages.1.*" --layers 2

        pare fold runs/swrn-seed0 --beside runs/swrn-seed1 --beside runs/swrn-seed2

        pare fold runs/swrn --curve --root data
    """
    if curve:
        if threshold is not None or layers is not None or beside:
            raise ConfigError("--curve tries every number of layers: leave out --threshold, --layers and --beside")

        fold_curve(run, only, recalibrate, root, device, flags)
        return
    from paretorch import deploy
    from paretorch.methods import sharing
    from paretorch.report.sharing import FoldedGroup, add_to_report, write_folding, write_similarities

    if threshold is None and layers is None:
        threshold = 0.95
    place = choose_device(device)
    network = shared_network(run, root, flags).to(place)
    similarities = sharing.layer_similarity(network)
    groups = [one.layers for one in similarities]
    columns = kept_similarities(run, beside or [], [len(one) for one in groups])
    inputs = batches(run, root, place, recalibrate) if recalibrate else None
    small = sharing.fold(network, threshold=threshold, layers=layers, only=only, recalibrate=inputs)
    foldings: list[sharing.Folding] = small.__dict__["paretorch_folding"]
    unfolded = sharing.fold(network, layers=sum(map(len, groups)))
    before = deploy.sizes(unfolded).total
    after = deploy.save(small, run / "folded.pare").total
    drawn = [
        FoldedGroup(
            layers=one.layers,
            runs=one.runs,
            scales=one.scales,
            errors=one.errors,
            stored=one.stored,
            words=one.words,
            similarity=similarity.matrix.tolist(),
        )
        for one, similarity in zip(foldings, similarities, strict=True)
    ]
    title = f"{run.resolve().name}, folded"
    page = write_folding(run / "folding.html", title=title, groups=drawn, sizes=(before, after))
    add_to_report(run / "report.html", drawn)
    for folding in foldings:
        typer.echo(str(folding))
    typer.echo(f"{before:,} bytes with all layers, {after:,} folded; {run / 'folded.pare'}, {page}")
    if any(not folding.exact and folding.stored < max(folding.runs) for folding in foldings):
        typer.echo(
            "Where the layers left are more than the templates, the templates are stored: folding further saves."
        )
    if columns:
        title, path = f"{run.resolve().name}, layers alike", run / "similarities.html"
        typer.echo(str(write_similarities(path, title=title, groups=groups, columns=columns)))


def fold_curve(
    run: Path, only: str | None, recalibrate: int, root: str | None, device: str, flags: RecipeFields
) -> None:
    """Measure every fold, and leave the numbers and two pictures in the folder of the run."""
    place = choose_device(device)
    network = shared_network(run, root, flags).to(place)
    recipe = recipe_of(run)
    task, _ = choose(recipe, Runtime(root=root), place)
    inputs = inputs_of(task, recipe, recalibrate) if recalibrate else None
    name, held_out = "", "validation" if recipe.data.validation else "test"

    def measure(model: nn.Module) -> float:
        nonlocal name
        found = task.evaluate(model)
        name = headline(found)
        return found[name]

    points, label = [], ""
    for point in folding_curve(network, measure, only, inputs):
        points.append(point)
        label = name.replace("test_", f"{held_out} ")
        typer.echo(
            f"{point.layers} layer{'s' if point.layers > 1 else ''} (threshold {point.threshold:.3f}): {label} {format_metric(name, point.measured)}, "
            f"{point.bytes:,} bytes, weights off by up to {point.error:.1%}"
        )
    # A curve for each stage, beside that of the whole: none takes another's place.
    stem = "folding" if only is None else "folding-" + re.sub(r"[^\w.-]+", "-", only).strip(".-")
    content = {"metric": name, "recalibrate": recalibrate, "points": [asdict(point) for point in points]}
    (run / f"{stem}.json").write_text(json.dumps({**content, "environment": environment(place)}, indent=1) + "\n")
    title = f"{run.resolve().name}, folded"
    for x_label, end in (("layers left of those that share", ""), ("threshold", "-threshold")):
        save(_drawn(title, label, points, x_label), run / f"{stem}{end}.svg")
    typer.echo(", ".join(str(run / f"{stem}{end}") for end in (".json", ".svg", "-threshold.svg")))


def _drawn(title: str, label: str, points: Sequence[Folded], x_label: str) -> str:
    """The metric by the layers that are left, or by the threshold; an accuracy as errors, whose small steps one sees."""
    x = [point.threshold if x_label == "threshold" else point.layers for point in points]
    y, floor = [point.measured for point in points], None
    if label.endswith("accuracy"):
        y, label, floor = [100 * (1 - value) for value in y], label.replace("accuracy", "error in per cent"), 1.0
    return curves(title, {label: Curve(x, y, y, y)}, x_label=x_label, floor=floor)
