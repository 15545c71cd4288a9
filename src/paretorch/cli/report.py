"""`pare report`."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paretorch.cli.inputs import SHAPES, shape_of
from paretorch.cli.options import Text, Whole, go_with, integers
from paretorch.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor, nn

_BATCH = 1  # inputs per call


def report(
    path: Annotated[
        Path, typer.Argument(help="A run folder, an artefact such as model.pare, or the name of a zoo network.")
    ],
    html: Annotated[Path | None, typer.Option(help="Write the report as a page here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    data: Annotated[
        Text, typer.Option(help="Measure accuracy on the test part of digits, cifar10 or cifar100.")
    ] = None,
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
    """
    import torch

    from paretorch.report import report as measure
    from paretorch.report import write_html
    from paretorch.training.folder import read_history

    go_with("--latency", latency, {"--batch": batch})
    model = _model(path)
    folder = model.parent if isinstance(model, Path) else None  # a fresh network belongs to no run
    given = tuple(integers(shape, "--shape")) if shape else SHAPES.get(data) if data else None
    size = shape_of(folder) if given is None and folder is not None else given
    if latency and size is None:
        raise ConfigError("Latency needs the shape of an input: --shape 3,32,32")
    example = None if size is None else torch.zeros(batch or _BATCH, *size)
    found = measure(
        model,
        example=example,
        latency=latency,
        baseline=_dense(model) if latency else None,
        data=None if data is None else _batches(data, root),
    )
    typer.echo(found.to_json() if as_json else str(found))
    if html is not None:
        title = path.resolve().name if path.is_dir() else found.name.removesuffix(".pare")
        history = [] if folder is None else read_history(folder)
        write_html(html, title=title, comparison=[], report=found, history=history, samples=_samples(model))


def _samples(model: "Path | nn.Module") -> bytes | None:
    """The images that the network of a run made; None where there are none."""
    if not isinstance(model, Path) or model.name != "model.pare" or not model.with_name("samples.png").exists():
        return None
    return model.with_name("samples.png").read_bytes()


def _model(path: Path) -> "Path | nn.Module":
    """The artefact to report on, or a fresh network of the zoo."""
    from paretorch import zoo

    artefact = path / "model.pare" if path.is_dir() else path
    if artefact.exists():
        return artefact
    if not path.exists() and path.name == str(path):
        with contextlib.suppress(ConfigError):
            return zoo.build(path.name).eval()
    if (path / "config.json").exists():
        raise ConfigError(f"There is no artefact {artefact}; finish the run with: pare train --out {path} --resume")
    raise ConfigError(f"There is no artefact {artefact}, and no network of the zoo has this name")


def _dense(model: "Path | nn.Module") -> "nn.Module | None":
    """The network that the artefact names, as the zoo builds it; None where it names none, or is one itself."""
    from paretorch import zoo
    from paretorch.deploy.artefact import open_artefact

    if not isinstance(model, Path):
        return None
    named = open_artefact(model)[1].get("zoo")
    return None if named is None else zoo.build(named[0], **named[1]).eval()


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
