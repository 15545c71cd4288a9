"""`pare shrink`."""

import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paretorch.cli import options
from paretorch.cli.lines import say
from paretorch.cli.options import SMALL, WHAT, WHERE
from paretorch.cli.recipe_flags import RecipeFields, make_recipe, recipe_flags
from paretorch.errors import ConfigError
from paretorch.zoo.user_code import short_name

if TYPE_CHECKING:
    from torch import nn

    from paretorch.training.recipe import Recipe
    from paretorch.training.runtime import Runtime
    from paretorch.training.tasks import Task

_AT_ONCE = 64  # batches that are in memory as numbers; every epoch is shuffled anew
_METRICS = ("test_accuracy", "test_f1", "test_loss")


@recipe_flags("network", "data", "task", "batch", "seed")
def shrink(
    weights: Annotated[
        Path | None,
        typer.Option(help="Trained weights: .safetensors, .pt or .pare.", rich_help_panel=WHAT),
    ] = None,
    budget: Annotated[
        options.Text,
        typer.Option(
            help="Bytes of the file, such as 500kB, 1.3MB, 48KiB or 1/10.", show_default="1/10", rich_help_panel=SMALL
        ),
    ] = None,
    runtime: Annotated[
        options.Text,
        typer.Option(
            help="In place of --budget: train on what a runtime stores, such as openvino.", rich_help_panel=SMALL
        ),
    ] = None,
    latency: Annotated[
        options.Text,
        typer.Option(
            help="Remove channels until one input takes this time on this machine: 5ms, or 1/2 of the dense network's. With --budget, both.",
            rich_help_panel=SMALL,
        ),
    ] = None,
    steps: Annotated[int, typer.Option(help="Training steps; 0 rounds only.", rich_help_panel=SMALL)] = 1000,
    output: Annotated[
        Path | None, typer.Option(help="The small file.", show_default="model.pare in the run folder")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder.", show_default="runs/shrink-NETWORK-DATA")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue in --out where its checkpoint is.")] = False,
    *,
    flags: RecipeFields,
    device: options.Device = "auto",
    root: options.Root = None,
    download: options.Download = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print the end alone.", rich_help_panel=WHERE)] = False,
) -> None:
    """Make a trained network small: rounded to a byte budget or cut to a latency, and trained to answer as before. Labels are not used.

    Examples:

        pare shrink --network resnet20 --data cifar10 --weights dense.pare --budget 1/10 --steps 1000

        pare shrink --network mine.py:build --weights mine.safetensors --data cifar10 --budget 500kB --output small.pare

        pare shrink --network resnet20 --data cifar10 --weights dense.pare --budget 100kB --steps 0

        pare shrink --network resnet20 --data cifar10 --weights dense.pare --runtime onnxruntime-int4

        pare shrink --network resnet20 --data cifar10 --weights dense.pare --latency 1/2 --budget 100kB
    """
    from paretorch.deploy.measure.stopwatch import TIMED_ONLY
    from paretorch.training.recipe_values import changed
    from paretorch.training.runtime import Runtime

    if budget is not None and runtime is not None and not (latency and runtime in TIMED_ONLY):
        raise ConfigError("--budget and --runtime do not go together: a runtime says how many bytes a weight takes")
    recipe = changed(make_recipe(None, flags), {"dtype": "fp32"})
    setup = Runtime(root=root, download=download, device=device, progress="quiet" if quiet else "auto")
    folder = out or Path("runs") / f"shrink-{short_name(recipe.network)}-{short_name(recipe.data.name)}"
    _check(folder, resume)
    model, task = _prepare(recipe, setup, weights)
    asked = {"budget": budget, "runtime": runtime, "latency": latency}
    wanted = {name: value for name, value in asked.items() if value is not None} or {"budget": "1/10"}
    _shrink(model, task, recipe, folder, wanted, steps, output, quiet)


def _check(folder: Path, resume: bool) -> None:
    begun = (folder / "shrink.json").exists()
    if begun and not resume:
        raise ConfigError(f"{folder} already holds a run; continue it with --resume or choose another --out")
    if resume and not begun:
        raise ConfigError(f"{folder} holds no run to continue; leave --resume out to begin one")


def _prepare(recipe: "Recipe", runtime: "Runtime", weights: Path | None) -> "tuple[nn.Module, Task]":
    from paretorch.training.networks import build_network, is_zoo, load_weights
    from paretorch.training.run import check_fit, choose_device
    from paretorch.training.tasks.choose import choose

    place = choose_device(runtime.device)
    if weights is None and is_zoo(recipe.network):
        raise ConfigError(f"{recipe.network} has no weights yet: give --weights FILE")
    task, wanted = choose(recipe, runtime, place)
    model = build_network(recipe.network, recipe.network_options, wanted)
    if weights is not None:
        load_weights(model, weights)
    model = model.to(place).eval()
    check_fit(model, task, recipe, wanted)
    return model, task


class TaskInputs:
    """Training batches of a task as the model sees them, some of each epoch, the same each time."""

    def __init__(self, task: Any, name: str) -> None:
        if not hasattr(task, "inputs"):
            raise ConfigError(
                f"pare shrink has no unlabelled batches of {name}: use pt.shrink in Python, with your own"
            )
        self._task = task

    def __iter__(self) -> Iterator[Any]:
        for number in count():
            yield from self._task.inputs(number, min(self._task.steps, _AT_ONCE))


def _shrink(
    model: "nn.Module",
    task: "Task",
    recipe: "Recipe",
    folder: Path,
    wanted: dict[str, Any],
    steps: int,
    output: Path | None,
    quiet: bool,
) -> None:
    from paretorch.deploy import save
    from paretorch.workflows.shrink import shrink_network

    mode = "quiet" if quiet else "bar" if sys.stderr.isatty() else "plain"
    batches = TaskInputs(task, recipe.data.name)
    found = shrink_network(model, batches, steps=steps, folder=folder, progress=mode, **wanted)
    target = output or folder / "model.pare"
    if output is not None:
        save(found.model, output)
    _print_comparison(model, found.model, task, found.record, target)


def _print_comparison(
    dense: "nn.Module", small: "nn.Module", task: "Task", record: dict[str, Any], target: Path
) -> None:
    """Print the dense network and the small one side by side."""
    from rich.console import Console
    from rich.table import Table

    from paretorch.report import report

    table = Table(title="dense and small, side by side")
    table.add_column("")
    for name in ("dense", "small"):
        table.add_column(name, justify="right")
    before, after = task.evaluate(dense.eval()), task.evaluate(small.eval())
    for name in _METRICS:
        if name in after:
            shown = (
                f"{100 * row[name]:.2f} %" if name == "test_accuracy" else f"{row[name]:.4f}" for row in (before, after)
            )
            table.add_row(name.replace("_", " "), *shown)
    size = report(small, latency=False)
    table.add_row("zeros", "", f"{100 * size.sparsity:.1f} %")
    table.add_row(
        "bytes per weight", f"{record['dense_bytes'] / size.weights:.2f}", f"{record['bytes'] / size.weights:.3f}"
    )
    table.add_row("bytes", f"{record['dense_bytes']:,}", f"{record['bytes']:,}")
    if "milliseconds" in record:
        table.add_row("milliseconds", f"{record['dense_milliseconds']:.3g}", f"{record['milliseconds']:.3g}")
    table.add_row("seconds", "", f"{sum(record['seconds'].values()):.0f}")
    Console().print(table)
    say(f"{target}: {record['bytes']:,} bytes, {record['dense_bytes'] / record['bytes']:.1f} times smaller")
