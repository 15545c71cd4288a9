"""`pare study`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paretorch.cli import options
from paretorch.cli.options import epochs_bar, integers
from paretorch.cli.recipe_flags import RecipeFields, recipe_flags
from paretorch.errors import ConfigError

if TYPE_CHECKING:
    from paretorch.workflows.studies import Study
    from paretorch.workflows.studies.results import Found


@recipe_flags(
    "network",
    "data",
    "task",
    help={
        "network": "Run every setting with this network: of the zoo, FILE.py:FUNCTION, hf:NAME or timm:NAME.",
        "data": "On these data: of the package, folder:PATH, webdataset:PATTERN, FILE.py:FUNCTION or hf:NAME.",
        "task": "With this task: classify, language, regress or FILE.py:FUNCTION.",
    },
    default=dict.fromkeys(("network", "data", "task"), "that of the study"),
)
def study(
    name: Annotated[
        str | None, typer.Argument(help="A study; without one, all are listed.", show_default=False)
    ] = None,
    *,
    flags: RecipeFields,
    only: Annotated[
        str | None, typer.Option(help="Settings to run, such as dense,cs,gmp-0.9*.", show_default="all")
    ] = None,
    table: Annotated[bool, typer.Option("--table", help="Run nothing; show what the results so far say.")] = False,
    layers: Annotated[
        bool, typer.Option("--layers", help="Run nothing; show the sparsity, or the bits, of each layer.")
    ] = False,
    curves: Annotated[bool, typer.Option("--curves", help="Run nothing; draw the metric over the epochs.")] = False,
    similarities: Annotated[
        bool, typer.Option("--similarities", help="Run nothing; draw how alike layers that share became.")
    ] = False,
    seeds: Annotated[str | None, typer.Option(help="Seeds such as 0,1,2.", show_default="the study's own")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Run nothing; list the runs, their epochs, and about how long they take.")
    ] = False,
    parallel: options.Parallel = None,
    engine: options.EngineName = "local",
    minutes: Annotated[
        float | None,
        typer.Option(min=0, help="Then runs stop where they are, to go on another time.", show_default="no limit"),
    ] = None,
    mps: Annotated[bool, typer.Option(help="Let parallel runs share a GPU through NVIDIA's MPS.")] = True,
    out: Annotated[Path, typer.Option(help="Where results go.")] = Path("results"),
    runs: Annotated[Path, typer.Option(help="Where run folders go.")] = Path("runs"),
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")] = "auto",
    root: Annotated[str | None, typer.Option(help="Folder of the data sets.")] = None,
) -> None:
    """Run a study over its seeds and write raw metrics and a summary; the same command resumes it.

    A run whose file is in the results already, with the same recipe, is not run again; nor is one that diverged, which is named below the table.

    Examples:

        pare study

        pare study dense-resnet20 --root data --parallel 3

        pare study sparsity-resnet20 --only dense,cs,gmp,st3 --root data --parallel 8

        pare study sharing-wrn28-4 --root data --parallel 5 --minutes 25

        pare study sparsity-vgg16 --root data --engine ray://HOST

        pare study mine.toml --network mine.py:build --data folder:photos --parallel 4

        pare study sparsity-resnet20 --table

        pare study sparsity-vgg16 --layers --only cs-0.99,mp-0.99

        pare study sharing-shortest-paths --curves

        pare study sharing-wrn28-4 --similarities --only swrn-2,swrn-6

        pare study optim-wrn28-4-rates --dry-run

        pare study dense-vgg16 --seeds 0 --set epochs=2 --out tried
    """
    from dataclasses import replace

    from paretorch.workflows import studies
    from paretorch.workflows.queue import choose_engine
    from paretorch.workflows.queue.processes import mps as service
    from paretorch.workflows.studies.results import collect

    if name is None:
        for each in studies.study_names():
            typer.echo(f"{each}: {studies.load_study(each).claim}")
        return
    if "seed" in flags:
        raise ConfigError(f"Every run of a study has a seed of its own: use --seeds {flags['seed']}")
    chosen = studies.load_study(name, flags)
    if seeds is not None:
        chosen = replace(chosen, seeds=tuple(integers(seeds, "--seeds")))
    words = ["--device", device, *(["--root", root] if root else [])]
    if dry_run:
        _list(chosen, only.split(",") if only else [], out)
        return
    if chosen.tickets:
        if only:
            raise ConfigError(f"{name} is a study of ticket searches, which has no settings to choose by --only")
        if layers or curves or similarities:
            raise ConfigError(
                f"{name} is a study of ticket searches: use --table, or see {out / chosen.name}/tickets.jsonl and .svg"
            )
        if table:
            _show_tickets(chosen, out)
            return
        runner = choose_engine(engine, parallel, device)
        with service(mps and _shares(engine, parallel)):
            studies.run_tickets(chosen, out, runs, engine=runner, minutes=minutes, options=words, log=typer.echo)
        _show_tickets(chosen, out)
        return
    patterns = only.split(",") if only else []
    asked = chosen.only(patterns) if patterns else chosen
    if curves:
        _draw(asked, out)
        return
    if similarities:
        _draw_similarities(asked, out)
        return
    if table or layers:
        _show_stored(asked, out, table, layers)
        return
    runner = choose_engine(engine, parallel, device)
    with service(mps and _shares(engine, parallel)), epochs_bar() as bar:
        log = typer.echo if bar is None else bar.log
        watch = None if bar is None else bar.watch
        studies.run_study(
            chosen,
            out,
            runs,
            only=patterns,
            engine=runner,
            minutes=minutes,
            options=words,
            log=log,
            watch=watch,
        )
    _show(chosen, *collect(chosen, out / chosen.name))


def _list(study: "Study", only: list[str], out: Path) -> None:
    """Every run that there is to do, whether it is done, and the minutes of those that are not."""
    from paretorch.workflows.studies.estimate import minutes_of, ticket_epochs, ticket_minutes
    from paretorch.workflows.studies.results import collect

    if study.tickets:
        typer.echo(f"{len(study.tickets)} tables of ticket searches, {ticket_epochs(study):,} epochs")
        typer.echo(f"About {ticket_minutes(study):.0f} minutes on one H200, run after run.")
        return
    chosen = study.only(only) if only else study
    found, diverged = collect(chosen, out / study.name)
    left = 0.0
    for name, recipe in chosen.jobs():
        done = name in found or name in diverged
        left += 0.0 if done else minutes_of(recipe)
        duration = "done" if done else f"about {minutes_of(recipe):.0f} minutes"
        typer.echo(f"{name}: {recipe.epochs + recipe.finetune} epochs of {recipe.network}, {duration}")
    typer.echo(f"About {left:.0f} minutes on one H200, run after run, for what is not done.")


def _show_stored(study: "Study", out: Path, table: bool, layers: bool) -> None:
    from paretorch.workflows.studies.results import collect, require_some
    from paretorch.workflows.studies.tables import show_layers

    found, diverged = collect(study, out / study.name)
    require_some(study, [*found, *diverged], out)
    if table:
        _show(study, found, diverged)
    if layers:
        for line in show_layers(study, found) or [f"No run of {study.name} so far compresses a layer."]:
            typer.echo(line)


def _draw(study: "Study", out: Path) -> None:
    from paretorch.report.markup import save
    from paretorch.workflows.studies.pictures import draw_curves

    metric, picture = draw_curves(study, out / study.name)
    path = out / study.name / f"{metric}.svg"
    save(picture, path)
    typer.echo(f"{path}: {metric.replace('_', ' ')} over the epochs")


def _draw_similarities(study: "Study", out: Path) -> None:
    from paretorch.workflows.studies import pictures

    target = out / study.name
    found = pictures.similarities(study, target)
    typer.echo("Mean similarity of layers an even / an odd number apart, by group:")
    for name, matrices in found.items():
        typer.echo(pictures.describe_similarities(name, matrices))
    typer.echo(str(pictures.draw_similarities(study, target, found)))


def _shares(engine: str, parallel: int | None) -> bool:
    """Whether several processes of this command may be on one GPU."""
    return engine == "local" and (parallel or 1) > 1


def _show_tickets(study: "Study", out: Path) -> None:
    from paretorch.workflows.studies.results import require_some
    from paretorch.workflows.studies.tickets import ticket_lines

    lines = ticket_lines(study, out / study.name)
    require_some(study, lines, out)
    for line in (*lines, f"Claim: {study.claim}"):
        typer.echo(line)


def _show(study: "Study", found: "Found", diverged: list[str]) -> None:
    """What the results say: accuracy against sparsity, bits or parameters where that is the question, else each setting's metric."""
    from paretorch.workflows.studies.tables import (
        points_of,
        show_bits,
        show_metric,
        show_points,
        show_sharing,
        show_verdicts,
    )

    if points := points_of(study, found):
        lines = [*show_points(points), "", *show_verdicts(study, points)]
    else:
        lines = show_bits(study, found) or show_sharing(study, found) or show_metric(study, found)
    if diverged:
        lines = [*lines, f"Diverged: {', '.join(diverged)}"]
    for line in (*lines, f"Claim: {study.claim}") if lines else ():
        typer.echo(line)
