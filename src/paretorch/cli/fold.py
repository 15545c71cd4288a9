"""`pare fold`."""

from pathlib import Path
from typing import Annotated

import typer


def fold(
    run: Annotated[Path, typer.Argument(help="The folder of a run that was trained with SoftSharing.")],
    threshold: Annotated[
        float | None, typer.Option(help="The least similarity of layers that become one.", show_default="0.95")
    ] = None,
    layers: Annotated[int | None, typer.Option(help="Or how many of the sharing layers stay, in all.")] = None,
    only: Annotated[str | None, typer.Option(help="Fold the groups with a layer of this name or pattern.")] = None,
) -> None:
    """Fold layers that have become alike into loops: folded.pare and folding.html in the run's folder.

    Examples:

        pare fold runs/swrn --threshold 0.9

        pare fold runs/swrn --only "stages.1.*" --layers 2
    """
    from paretorch import deploy, sharing
    from paretorch.cli.fold_run import shared_network
    from paretorch.report.folding import write_folding

    if threshold is None and layers is None:
        threshold = 0.95
    network = shared_network(run)
    similarities = sharing.layer_similarity(network)
    small = sharing.fold(network, threshold=threshold, layers=layers, only=only)
    foldings: list[sharing.Folding] = small.__dict__["paretorch_folding"]
    before = deploy.encoded_size(sharing.fold(network, threshold=1.0).state_dict())
    after = deploy.save(small, run / "folded.pare").total
    page = write_folding(
        run / "folding.html",
        title=f"{run.name}, folded",
        similarities=similarities,
        foldings=foldings,
        sizes=(before, after),
    )
    for folding in foldings:
        typer.echo(str(folding))
    typer.echo(f"{before:,} bytes with all layers, {after:,} folded; {run / 'folded.pare'}, {page}")
