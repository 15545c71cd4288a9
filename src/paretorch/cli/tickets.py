"""`pare tickets`."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paretorch.cli import options
from paretorch.cli.options import SEARCH
from paretorch.cli.recipe_flags import RecipeFields, recipe_flags
from paretorch.cli.values import IMAGES, Number, Text, Whole, assignments, given, integers, numbers
from paretorch.errors import ConfigError, PareError, UndecidedWarning
from paretorch.training.runtime import Runtime

if TYPE_CHECKING:
    from paretorch.workflows.tickets import Storage

_METHODS = "cs, imp, imp-c, iss, sequential, supermask, supermask-stochastic"


@recipe_flags(
    "network",
    "data",
    "validation",
    "epochs",
    "batch",
    "lr",
    "weight_decay",
    "schedule",
    "milestones",
    help={
        "data": f"{', '.join(IMAGES)}.",
        "validation": "Training images held out; tickets are chosen by them.",
        "epochs": "Epochs of a round, and of retraining.",
        "batch": "Images per step.",
        "lr": "Learning rate of the weights.",
    },
    default={"validation": "5000, digits 200"},
)
def tickets(
    config: Annotated[
        Path | None, typer.Option(help="A TOML or JSON file of recipe fields, with a table [tickets] of those below.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The folder.", show_default="runs/tickets-NETWORK-DATA")] = None,
    storage: Annotated[
        Path | None, typer.Option(help="A folder that any number of workers share: begin there, or join.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue what is in --out.")] = False,
    *,
    flags: RecipeFields,
    method: Annotated[
        Text, typer.Option(help=f"One or several of {_METHODS}.", show_default="cs", rich_help_panel=SEARCH)
    ] = None,
    rounds: Annotated[
        Whole, typer.Option(help="Rounds.", show_default="5, supermasks 1", rich_help_panel=SEARCH)
    ] = None,
    init: Annotated[
        Text, typer.Option(help="s at the start; several, such as -0.1,0,0.1, are runs.", rich_help_panel=SEARCH)
    ] = None,
    rate: Annotated[
        Text, typer.Option(help="imp, imp-c, sequential: share dropped a round.", rich_help_panel=SEARCH)
    ] = None,
    store: Annotated[
        Number,
        typer.Option(
            help="Epochs of round 1 after which the weights are stored that tickets are retrained from.",
            show_default="0: the initialisation",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    rewind: Annotated[
        bool | None,
        typer.Option(
            "--rewind/--continue",
            help="Before a further round, go back to the stored weights, or go on.",
            show_default="as printed: imp rewinds, others go on",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(help="An option of the method, such as penalty=1e-8: NAME=VALUE.", rich_help_panel=SEARCH),
    ] = None,
    seeds: Annotated[Text, typer.Option(help="Seeds such as 0,1,2.", show_default="0", rich_help_panel=SEARCH)] = None,
    device: options.Device = "auto",
    root: options.Root = None,
    download: options.Download = False,
    compile: options.Compile = None,
    graph: options.Graph = True,
    checkpoint_epochs: options.CheckpointEpochs = 1,
    quiet: options.Quiet = False,
) -> None:
    """Search sparse subnetworks that train as well as the dense network (chapter 4, Algorithms 2 to 4).

    Every setting (method, init or rate, seed) is one run of rounds, all trained alike; after each, its ticket is retrained.
    Prints all tickets, the sparsest that matches the dense network and the best; writes tickets.jsonl, summary.json and
    tickets.svg.

    Examples:

        pare tickets --network digits-cnn --data digits --epochs 5 --rounds 3 --init -0.1,0,0.1

        pare tickets --network resnet20 --data cifar10 --method cs,imp,imp-c --init -0.2,-0.1,0 --store 2 --out runs/tickets

        pare tickets --network conv6 --data cifar10 --method imp --rate 0.15 --option dense_rate=0.2 --rounds 30

        pare tickets --out runs/tickets --resume

        pare tickets --config tickets.toml --storage /shared/tickets     (the same again for each further worker)
    """
    from paretorch.cli.tickets_searches import open_storage

    search_flags = given(
        method=None if method is None else [part.strip() for part in method.split(",")],
        rounds=rounds,
        init=None if init is None else numbers(init, "--init"),
        rate=None if rate is None else numbers(rate, "--rate"),
        store=store,
        rewind=rewind,
        options=assignments(option, "--option penalty=1e-8") or None,
        seeds=None if seeds is None else integers(seeds, "--seeds"),
    )
    runtime = Runtime(
        root=root,
        download=download,
        device=device,
        compile=compile,
        graph=graph,
        checkpoint_epochs=checkpoint_epochs,
        progress="quiet",
    )
    if out is not None and storage is not None:
        raise ConfigError("--out and --storage both name the folder: give one of them.")
    opened = open_storage(config, storage or out, resume or storage is not None, flags, search_flags, runtime)
    _work(opened, runtime, quiet)


def _work(opened: "Storage", runtime: Runtime, quiet: bool) -> None:
    from paretorch.cli.tickets_table import watched, write_and_show
    from paretorch.workflows.tickets import work

    try:
        with warnings.catch_warnings(), watched(opened, quiet=quiet) as (tell, show):
            # What rounding does to the network of a search is measured, and matters little: tickets are retrained.
            warnings.simplefilter("ignore", UndecidedWarning)
            work(opened, runtime, tell, show)
    except PareError:
        write_and_show(opened)
        raise
    write_and_show(opened)
