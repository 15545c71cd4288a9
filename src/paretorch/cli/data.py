"""`pare data`."""

from pathlib import Path
from typing import Annotated

import typer

from paretorch.cli.options import DATA
from paretorch.training.tasks.choose_disk import IMAGENET


def data(
    name: Annotated[str, typer.Argument(help=f"{', '.join(DATA)}.")],
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
    typer.echo(f"{name}: {_describe(name, root, download)}, complete.")


def _describe(name: str, root: Path | None, download: bool) -> str:
    from paretorch import zoo
    from paretorch.training.tasks.translation import load_multi30k
    from paretorch.zoo.data import text
    from paretorch.zoo.data.on_disk import open_imagenet
    from paretorch.zoo.data.reading import in_processes, usual_workers
    from paretorch.zoo.data.registry import data_root

    if name in ("ptb", "ptb-char"):
        corpus = text.load("char" if name == "ptb-char" else "word", root)
        sizes = ", ".join(f"{len(part):,}" for part in (corpus.train, corpus.valid, corpus.test))
        return f"{sizes} tokens to train, validate and test with, {len(corpus.vocabulary):,} different ones"
    if name == "multi30k":
        pairs = load_multi30k(root)
        sizes = ", ".join(f"{len(part):,}" for part in (pairs.train, pairs.valid, pairs.test))
        return f"{sizes} pairs of sentences to train, validate and test with, {pairs.vocabulary:,} tokens"
    if name == "shortest-paths":
        return "grids are made when they are needed"
    if name == IMAGENET:
        found = open_imagenet(data_root(root) / IMAGENET, in_processes(usual_workers()))
        counts = [len(part.labels) for part in (found.train, found.test)]
        return f"{counts[0]:,} training and {counts[1]:,} test images, {found.classes} classes"
    images = zoo.data.load(name, root, download)
    shape = "×".join(str(size) for size in images.train[0].shape[1:])
    sizes = f"{len(images.train[1])} training and {len(images.test[1])} test images of {shape}"
    return f"{sizes}, {images.classes} classes"
