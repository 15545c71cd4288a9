"""`pare data`."""

from pathlib import Path
from typing import Annotated

import typer


def data(
    name: Annotated[str, typer.Argument(help="digits, cifar10 or cifar100.")],
    download: Annotated[
        bool, typer.Option("--download", help="Fetch what is missing from the official place.")
    ] = False,
    root: Annotated[
        Path | None, typer.Option(help="Folder of the data sets.", show_default="$PARETORCH_DATA or ~/.cache/paretorch")
    ] = None,
) -> None:
    """Check a data set, and fetch it when asked to.

    Examples:

        pare data digits

        pare data cifar10 --download --root data
    """
    from paretorch import zoo

    images = zoo.data.load(name, root, download)
    shape = "×".join(str(size) for size in images.train[0].shape[1:])
    typer.echo(
        f"{images.name}: {len(images.train[1])} training and {len(images.test[1])} test images of {shape}, "
        f"{images.classes} classes, complete."
    )
