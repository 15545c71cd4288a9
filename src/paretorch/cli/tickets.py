"""`pare tickets`."""

import contextlib
import shlex
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from paretorch.cli import options
from paretorch.cli.options import SEARCH, Number, Text, Whole, assignments, epochs_bar, given, integers, numbers
from paretorch.cli.recipe_flags import (
    HELD_OUT_SHOWN,
    RecipeFields,
    recipe_flags,
    require_drops,
    source_of,
    with_held_out,
)
from paretorch.errors import ConfigError, PareError, UndecidedWarning
from paretorch.training.recipe_values import by_place, read_config, recipe_from
from paretorch.training.runtime import Runtime
from paretorch.training.tasks.images import IMAGES
from paretorch.workflows.queue import Engine, choose_engine
from paretorch.workflows.tickets import METHODS, Bench, Result, Storage, collect, make_searches, work
from paretorch.workflows.tickets.jobs import require_done, run_units
from paretorch.workflows.tickets.loop import do_unit
from paretorch.workflows.tickets.result import write_result
from paretorch.workflows.tickets.storage import clean
from paretorch.zoo.user_code import short_name

_METHODS = ", ".join(sorted(METHODS))


@recipe_flags(
    "network",
    "data",
    "task",
    "validation",
    "epochs",
    "batch",
    "lr",
    "weight_decay",
    "schedule",
    "milestones",
    help={
        "data": f"{', '.join(IMAGES)}; folder:PATH, FILE.py:FUNCTION or hf:NAME.",
        "validation": "Training images held out; tickets are chosen by them.",
        "epochs": "Epochs of a round, and of retraining.",
        "batch": "Images per step.",
        "lr": "Learning rate of the weights.",
    },
    default={"validation": HELD_OUT_SHOWN},
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
    parallel: options.Parallel = None,
    engine: options.EngineName = "local",
    unit: Annotated[Text, typer.Option(help="The one search to do; the caller has claimed it.", hidden=True)] = None,
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

        pare tickets --out runs/tickets --resume --parallel 4

        pare tickets --config tickets.toml --storage /shared/tickets     (the same again for each further worker)
    """
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
        raise ConfigError("--out and --storage both name the folder: give one of them")
    opened = _open_storage(config, storage or out, resume or storage is not None, flags, search_flags, runtime)
    if unit is not None:
        _do_unit(opened, unit, runtime)
    elif parallel is None and engine == "local":
        _work(opened, runtime, quiet)
    else:
        _work_in_processes(opened, runtime, quiet, choose_engine(engine, parallel, device))


def _open_storage(
    config: Path | None,
    folder: Path | None,
    continues: bool,
    recipe_given: dict[str, Any],
    search_given: dict[str, Any],
    runtime: Runtime,
) -> Storage:
    """The folder with all that is asked for in it; whatever is wrong is said before the folder is made."""
    values = {} if config is None else read_config(config)
    table = values.pop("tickets", {})
    if not isinstance(table, dict):
        raise ConfigError(f"{config}: tickets should be a table, such as [tickets] and below it rounds = 5")
    if continues and folder is not None and config is None:
        if not recipe_given and not search_given:
            return Storage.open(folder)
        if (folder / "recipe.json").exists():
            values = Storage.open(folder).recipe.as_dict()
    source = source_of(config)
    recipe = recipe_from(with_held_out(by_place(values, recipe_given)), source)
    require_drops(recipe, recipe_given)
    folder = folder or Path("runs") / f"tickets-{short_name(recipe.network)}-{short_name(recipe.data.name)}"
    exists = (folder / "recipe.json").exists()
    if exists and not continues:
        raise ConfigError(
            f"{folder} already holds a ticket search; continue it with --resume, join it with --storage, or choose another --out"
        )
    wanted = {**table, **search_given}
    searches = [] if exists and not wanted else make_searches({"seeds": [recipe.seed], **wanted}, source)
    Bench.of(recipe, runtime)  # for the errors alone
    return Storage.join(folder, recipe, searches)


def _work(opened: Storage, runtime: Runtime, quiet: bool) -> None:
    try:
        with warnings.catch_warnings(), show_search(opened, quiet=quiet) as (log, show):
            # What rounding does to the network of a search is measured, and matters little: tickets are retrained.
            warnings.simplefilter("ignore", UndecidedWarning)
            work(opened, runtime, log, show)
    except PareError:
        write_and_show(opened)
        raise
    write_and_show(opened)


def _do_unit(opened: Storage, name: str, runtime: Runtime) -> None:
    units = {unit.name: unit for unit in opened.units()}
    if name not in units:
        raise ConfigError(f"{opened.path} has no search {name!r}; it has: {', '.join(units)}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndecidedWarning)
        clean(units[name])
        do_unit(units[name], opened, runtime)


def _work_in_processes(opened: Storage, runtime: Runtime, quiet: bool, runner: Engine) -> None:
    flags = {"--compile": runtime.compile is True, "--no-compile": runtime.compile is False}
    flags |= {"--no-graph": not runtime.graph, "--download": runtime.download}
    words = ["--device", runtime.device, "--checkpoint-epochs", str(runtime.checkpoint_epochs)]
    words += [*(["--root", runtime.root] if runtime.root else []), *(flag for flag, given in flags.items() if given)]
    with contextlib.nullcontext() if quiet else epochs_bar() as bar:
        log: Callable[[str], None] = (lambda line: None) if quiet else typer.echo if bar is None else bar.log
        ends = run_units(opened, runner, words, log=log, watch=None if bar is None else bar.watch)
    write_and_show(opened)
    require_done(ends)


Row = dict[str, Any]
_MOST_SHOWN = 60  # tickets; more are a file to look into


@contextlib.contextmanager
def show_search(storage: Storage, *, quiet: bool) -> Iterator[tuple[Callable[[str], None], Callable[[Row], None]]]:
    """Functions that print a line and a row; on a terminal with a bar over the epochs of all workers."""
    if quiet:
        yield (lambda words: None), (lambda row: None)
        return
    with epochs_bar() as bar:
        log: Callable[[str], None] = typer.echo if bar is None else bar.log
        done = threading.Event()

        def watch_epochs() -> None:
            while bar is not None and not done.wait(1.0):
                bar.watch(*storage.epochs())

        watcher = threading.Thread(target=watch_epochs, daemon=True)
        watcher.start()
        try:
            yield log, (lambda row: log(_line(row)))
        finally:
            done.set()
            watcher.join()
            if bar is not None:
                bar.watch(*storage.epochs())


def write_and_show(storage: Storage) -> None:
    """Write what there is beside the searches and print it; nothing where no round is done yet."""
    result = collect(storage)
    if not result.tickets:
        return
    write_result(storage, result, shlex.join(["pare", *sys.argv[1:]]))
    _print(result)
    layers = ", layers.svg" if (storage.path / "layers.svg").exists() else ""
    typer.echo(f"{storage.path}: tickets.jsonl, summary.json, tickets.svg{layers}")


def _line(row: Row) -> str:
    if row["method"] == "dense":
        return f"{row['search']}: accuracy {_percent(row['accuracy'])}"
    return (
        f"{row['search']} round {row['round']}: {_percent(row['sparsity'])} zeros, accuracy {_percent(row['accuracy'])}"
    )


def _print(result: Result) -> None:
    rows = sorted(result.tickets, key=lambda row: (row["method"], row["sparsity"]))
    if len(rows) <= _MOST_SHOWN:
        table = Table(title="Tickets, retrained", box=SIMPLE)
        table.add_column("search", no_wrap=True)
        for name in ("round", "zeros", "accuracy", "test", "epochs"):
            table.add_column(name, justify="right")
        for row in [*result.dense, *rows]:
            shares = [_percent(row[name]) for name in ("sparsity", "accuracy", "test_accuracy")]
            table.add_row(row["search"], str(row["round"] or ""), *shares, str(row["epochs"]))
        Console().print(table)
    for one in result.found():
        typer.echo(f"{one.method}, seed {one.seed} ({one.epochs} epochs in all)")
        typer.echo(f"  sparsest matching: {_describe(one.sparsest)}")
        typer.echo(f"  best performing:   {_describe(one.best)}")
    typer.echo("accuracy is that on the validation split, by which tickets are chosen; the test set decides nothing.")


def _describe(row: Row | None) -> str:
    if row is None:
        return "none is as accurate as the dense network"
    return (
        f"{_percent(row['sparsity'])} zeros, accuracy {_percent(row['accuracy'])} (test {_percent(row['test_accuracy'])}): "
        f"{row['search']} round {row['round']}, {row['search_epochs']} epochs of search, {row['epochs']} with retraining"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"
