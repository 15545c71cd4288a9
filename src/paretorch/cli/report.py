"""`pare report`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from paretorch.errors import ConfigError

_SHAPES = {"digits": (1, 8, 8), "cifar10": (3, 32, 32), "cifar100": (3, 32, 32)}


def report(
    path: Annotated[Path, typer.Argument(help="A run folder, or an artefact such as model.pare.")],
    html: Annotated[Path | None, typer.Option(help="Write the report as a page here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    latency: Annotated[bool, typer.Option("--latency", help="Measure latency on this machine's CPU.")] = False,
    batch: Annotated[int, typer.Option(min=1, help="Inputs per call when latency is measured.")] = 1,
    shape: Annotated[
        str | None, typer.Option(help="Shape of one input, such as 3,32,32.", show_default="that of the run's data")
    ] = None,
) -> None:
    """Tell what a network costs: bytes on disk, bits per weight, sparsity, MACs, latency.

    Examples:

        pare report runs/mine

        pare report model.pare --shape 3,32,32 --latency --html report.html
    """
    import torch

    from paretorch import deploy
    from paretorch.cli.values import integers
    from paretorch.report import write_html
    from paretorch.training.folder import read_history

    folder = path if path.is_dir() else path.parent
    artefact = path / "model.pare" if path.is_dir() else path
    if not artefact.exists():
        raise ConfigError(f"There is no artefact {artefact}; finish the run with: pare train --out {folder} --resume")
    size = tuple(integers(shape, "--shape")) if shape else _SHAPES.get(_data_of(folder))
    if latency and size is None:
        raise ConfigError("Latency needs the shape of an input: --shape 3,32,32.")
    example = None if size is None else torch.zeros(batch, *size)
    found = deploy.report(artefact, example=example, latency=latency)
    typer.echo(found.to_json() if as_json else str(found))
    if html is not None:
        write_html(html, title=artefact.stem, comparison=[], report=found, history=read_history(folder))


def _data_of(folder: Path) -> str:
    """The data set of the run in that folder; empty where there is no run."""
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        return str(config["recipe"]["data"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
