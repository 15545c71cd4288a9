"""`pare fold`."""

from pathlib import Path
from typing import Annotated

import typer

from paretorch.errors import ConfigError


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
        from paretorch.cli.fold_curve import fold_curve

        fold_curve(run, only, recalibrate, root, device)
        return
    from paretorch import deploy
    from paretorch.cli.fold_run import batches, kept_similarities, shared_network
    from paretorch.methods import sharing
    from paretorch.report.sharing_pages import FoldedGroup, add_to_report, write_folding, write_similarities
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
