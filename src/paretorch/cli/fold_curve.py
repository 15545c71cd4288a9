"""`pare fold --curve`: what folding costs, one layer at a time."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import typer
from torch import nn

from paretorch.cli.fold_run import inputs_of, shared_network
from paretorch.cli.inputs import recipe_of
from paretorch.methods.sharing.curve import Folded, folding_curve
from paretorch.report.curves import Curve, curves
from paretorch.report.picture import save
from paretorch.training.folder import environment
from paretorch.training.progress import headline, told
from paretorch.training.run import choose_device
from paretorch.training.runtime import Runtime
from paretorch.training.tasks.choose import choose


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
