"""`pare report`."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paretorch.cli.finished import DEFAULT, FLAGS, HELP, Finished, find_finished
from paretorch.cli.options import Text, Whole, go_with, integers
from paretorch.cli.recipe_flags import RecipeFields, recipe_flags
from paretorch.errors import ConfigError
from paretorch.training.networks import build_network, is_zoo
from paretorch.training.progress import format_metric
from paretorch.training.tasks.choose_disk import has_own_task
from paretorch.zoo.user_code import allow_code

if TYPE_CHECKING:
    from torch import Tensor, nn

    from paretorch.report import Report

_BATCH = 1  # inputs per call


@recipe_flags(*FLAGS, help=HELP, default=DEFAULT)
def report(
    path: Annotated[
        Path,
        typer.Argument(
            help="A run folder, an artefact such as model.pare, weights with --network, or the name of a network."
        ),
    ],
    *,
    flags: RecipeFields,
    html: Annotated[Path | None, typer.Option(help="Write the report as a page here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    root: Annotated[Text, typer.Option(help="Folder of the data sets.")] = None,
    latency: Annotated[
        bool, typer.Option("--latency", help="Measure latency on this machine's CPU, beside the dense network.")
    ] = False,
    batch: Annotated[Whole, typer.Option(min=1, help="Inputs per call of --latency.", show_default=str(_BATCH))] = None,
    shape: Annotated[
        str | None, typer.Option(help="Shape of one input, such as 3,32,32.", show_default="that of the run's data")
    ] = None,
) -> None:
    """Print what a network costs: bytes on disk, bits per weight, sparsity, MACs, latency.

    Examples:

        pare report runs/mine

        pare report model.pare --data cifar10 --root data --latency

        pare report model.pare --shape 3,32,32 --latency --html report.html

        pare report runs/mine --network mine.py:build --latency
    """
    from paretorch.report import report as measure
    from paretorch.report import write_html
    from paretorch.training.folder import read_history

    go_with("--latency", latency, {"--batch": batch})
    model = _model(path, flags, root)
    given = tuple(integers(shape, "--shape")) if shape else None
    if not isinstance(model, Finished):  # a fresh network belongs to no run
        example = _zeros(given, batch)
        metrics: dict[str, float] = {}
        if latency and example is None:
            raise ConfigError("Latency needs the shape of an input: --shape 3,32,32")
        found = measure(model, example=example, latency=latency)
    else:
        found, metrics = _measure(model, given, batch, latency)
    typer.echo(found.to_json() if as_json else str(found))
    for name, value in metrics.items():
        typer.echo(f"{name.replace('_', ' ')}: {format_metric(name, value)}", err=as_json)
    if html is not None:
        title = path.resolve().name if path.is_dir() else found.name.removesuffix(".pare")
        history = read_history(model.path.parent) if isinstance(model, Finished) else []
        write_html(html, title=title, comparison=[], report=found, history=history, samples=_samples(model))


def _measure(
    model: Finished, shape: tuple[int, ...] | None, batch: int | None, latency: bool
) -> "tuple[Report, dict[str, float]]":
    """The report of a finished network, and what it comes to on data whose task knows no accuracy."""
    from paretorch.report import report as measure

    own = not model.names_its_network
    if own and model.path.suffix == ".pare" and not (latency or shape or model.flags):
        return measure(model.path, latency=False), {}  # nothing has to run, and so no code of a user
    example = model.example(shape, batch or _BATCH)
    if latency and example is None:
        raise ConfigError("Latency needs the shape of an input: --shape 3,32,32")
    data = model.flags.get("data.name")
    measured = model.task.evaluate(model.network()) if data and has_own_task(data) else {}
    found = measure(
        model.path if model.path.suffix == ".pare" else model.network(),
        into=model.built() if own and model.path.suffix == ".pare" else None,
        example=example,
        accuracy=measured.get("test_accuracy"),
        data=_batches(data, model.root) if data and not measured else None,
        baseline=(model.built() if own else _dense(model.path)) if latency else None,
        latency=latency,
    )
    return found, {} if "test_accuracy" in measured else measured


def _zeros(shape: tuple[int, ...] | None, batch: int | None) -> "Tensor | None":
    import torch

    return None if shape is None else torch.zeros(batch or _BATCH, *shape)


def _samples(model: "Finished | nn.Module") -> bytes | None:
    """The images that the network of a run made; None where there are none."""
    if not isinstance(model, Finished) or not (drawn := model.path.with_name("samples.png")).exists():
        return None
    return drawn.read_bytes() if model.path.name == "model.pare" else None


def _model(path: Path, flags: RecipeFields, root: str | None) -> "Finished | nn.Module":
    """What to report on: a file, or a fresh network by its name."""
    found, name = find_finished(path, flags, root), str(path)
    if found.path.exists():
        return found
    if not is_zoo(name):
        allow_code(name)  # the user typed it
        return build_network(name, flags.get("network_options", {})).eval()
    if not path.exists() and path.name == name:
        with contextlib.suppress(ConfigError):
            return build_network(name, flags.get("network_options", {})).eval()
    if (path / "config.json").exists():
        raise ConfigError(f"There is no artefact {found.path}; finish the run with: pare train --out {path} --resume")
    raise ConfigError(f"There is no artefact {found.path}, and no network of the zoo has this name")


def _dense(path: Path) -> "nn.Module":
    """The network that the artefact names, as the zoo builds it."""
    from paretorch import zoo
    from paretorch.deploy.artefact import open_artefact

    name, options = open_artefact(path)[1]["zoo"]
    return zoo.build(name, **options).eval()


def _batches(data: str, root: str | None) -> "list[tuple[Tensor, Tensor]]":
    """The test part of an image set, as a network sees it."""
    import torch

    from paretorch import zoo

    images = zoo.data.load(data, root)
    shape = (1, len(images.mean), 1, 1)
    mean, std = torch.tensor(images.mean).view(shape), torch.tensor(images.std).view(shape)
    pixels, labels = images.test
    return [
        ((part.float() / 255 - mean) / std, classes)
        for part, classes in zip(pixels.split(500), labels.split(500), strict=True)
    ]
