"""`pare study`."""

from pathlib import Path
from typing import Annotated

import typer

from paretorch.cli.bar import epochs_bar
from paretorch.cli.values import assignments, integers


def study(
    name: Annotated[
        str | None, typer.Argument(help="A study; without one, all are listed.", show_default=False)
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds such as 0,1,2.", show_default="the study's own")] = None,
    parallel: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 1,
    mps: Annotated[bool, typer.Option(help="Let parallel runs share a GPU through NVIDIA's MPS.")] = True,
    out: Annotated[Path, typer.Option(help="Where results go.")] = Path("results"),
    runs: Annotated[Path, typer.Option(help="Where run folders go.")] = Path("runs"),
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    root: Annotated[str | None, typer.Option(help="Folder of the data sets.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Change a recipe field: NAME=VALUE.")] = None,
) -> None:
    """Run a study over its seeds and write raw metrics and a summary; the same command resumes it.

    Examples:

        pare study

        pare study dense-resnet20 --root data --parallel 3

        pare study dense-vgg16 --seeds 0 --set epochs=2 --out /tmp/results
    """
    from dataclasses import replace

    from paretorch import studies
    from paretorch.studies.mps import mps as service
    from paretorch.training.progress import headline, told

    if name is None:
        for each in studies.study_names():
            typer.echo(f"{each}: {studies.load_study(each).claim}")
        return
    chosen = studies.load_study(name, assignments(set_ or []))
    if seeds is not None:
        chosen = replace(chosen, seeds=tuple(integers(seeds, "--seeds")))
    options = ["--device", device, *(["--root", root] if root else [])]
    with service(mps and parallel > 1), epochs_bar() as bar:
        tell = typer.echo if bar is None else bar.console.print
        watch = None if bar is None else bar.watch
        summary = studies.run_study(chosen, out, runs, parallel=parallel, options=options, tell=tell, watch=watch)
    for setting, numbers in summary["settings"].items():
        metric = headline(numbers)
        found = numbers[metric]
        mean, spread = told(metric, found["mean"]), told(metric, found["std"])
        typer.echo(
            f"{chosen.name} {setting}: {metric.replace('_', ' ')} {mean}, standard deviation {spread} over {found['n']} seeds "
            f"(claim: {chosen.claim})"
        )
