"""`pare fold`."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from torch import nn

from paretorch.cli.fold_run import inputs_of, shared_network
from paretorch.cli.inputs import recipe_of
from paretorch.errors import ConfigError
from paretorch.report.charts import Curve, curves
from paretorch.report.files import save
from paretorch.training.folder import environment
from paretorch.training.progress import headline, told
from paretorch.training.run import choose_device
from paretorch.training.runtime import Runtime
from paretorch.training.tasks.choose import choose
from paretorch.workflows.folding_curve import Folded, folding_curve


def fold(
    run: Annotated[Path, typer.Argument(help="The folder of a run that was trained with SoftSharing.")],
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
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
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

        fold_curve(run, only, recalibrate, root, device)
        return
    from paretorch import deploy
    from paretorch.cli.fold_run import batches, kept_similarities, shared_network
    from paretorch.methods import sharing
    from paretorch.report.sharing import FoldedGroup, add_to_report, write_folding, write_similarities
    from paretorch.training.run import choose_device

    if threshold is None and layers is None:
        threshold = 0.95
    place = choose_device(device)
    network = shared_network(run, root).to(place)
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


def fold_curve(run: Path, only: str | None, recalibrate: int, root: str | None, device: str) -> None:
    """Measure every fold, and leave the numbers and two pictures in the folder of the run."""
    place = choose_device(device)
    network = shared_network(run, root).to(place)
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
            f"{point.layers} layer{'s' if point.layers > 1 else ''} (threshold {point.threshold:.3f}): {label} {told(name, point.measured)}, "
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
