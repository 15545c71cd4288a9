"""`pare tickets`."""

import shlex
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paretorch.cli.values import DATA, Number, Text, Whole, assignments, integers, numbers
from paretorch.errors import ConfigError, PareError
from paretorch.training.recipe import Runtime, read_config, recipe_from

if TYPE_CHECKING:
    from paretorch.sparsity.tickets import Search, Storage

_WHAT = "What to search in"
_HOW = "How to train, in every round"
_SEARCH = "How to search"
_WHERE = "Where and with what"
_VALIDATION = {"digits": 200}
_NAMES = "cs, imp, imp-c, iss, sequential, supermask, supermask-stochastic"


def tickets(
    config: Annotated[
        Path | None, typer.Option(help="A TOML or JSON file of recipe fields, with a table [tickets] of those below.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The folder.", show_default="runs/tickets-NETWORK-DATA")] = None,
    storage: Annotated[
        Path | None, typer.Option(help="A folder that any number of workers share: begin there, or join.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue what is in --out.")] = False,
    network: Annotated[Text, typer.Option(help="A network of the zoo.", rich_help_panel=_WHAT)] = None,
    data: Annotated[Text, typer.Option(help=f"{', '.join(DATA[:3])}.", rich_help_panel=_WHAT)] = None,
    validation: Annotated[
        Whole,
        typer.Option(
            help="Training images held out; tickets are chosen by them.",
            show_default="5000, digits 200",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    epochs: Annotated[Whole, typer.Option(help="Epochs of a round, and of retraining.", rich_help_panel=_HOW)] = None,
    batch: Annotated[Whole, typer.Option(help="Images per step.", rich_help_panel=_HOW)] = None,
    lr: Annotated[Number, typer.Option(help="Learning rate of the weights.", rich_help_panel=_HOW)] = None,
    weight_decay: Annotated[Number, typer.Option(help="Weight decay.", rich_help_panel=_HOW)] = None,
    schedule: Annotated[
        Text, typer.Option(help="constant, cosine, linear, onecycle, steps.", rich_help_panel=_HOW)
    ] = None,
    milestones: Annotated[Text, typer.Option(help="Epochs of the drops, such as 56,71.", rich_help_panel=_HOW)] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Any other recipe field: NAME=VALUE.", rich_help_panel=_HOW)
    ] = None,
    method: Annotated[
        Text, typer.Option(help=f"One or several of {_NAMES}.", show_default="cs", rich_help_panel=_SEARCH)
    ] = None,
    rounds: Annotated[
        Whole, typer.Option(help="Rounds.", show_default="5, supermasks 1", rich_help_panel=_SEARCH)
    ] = None,
    init: Annotated[
        Text, typer.Option(help="s at the start; several, such as -0.1,0,0.1, are runs.", rich_help_panel=_SEARCH)
    ] = None,
    rate: Annotated[
        Text, typer.Option(help="imp, imp-c, sequential: share dropped a round.", rich_help_panel=_SEARCH)
    ] = None,
    store: Annotated[
        Number,
        typer.Option(
            help="Epochs of round 1 after which the weights are stored that tickets are retrained from.",
            show_default="0: the initialisation",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    rewind: Annotated[
        bool | None,
        typer.Option(
            "--rewind/--continue",
            help="Before a further round, go back to the stored weights, or go on.",
            show_default="as printed: imp rewinds, others go on",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(help="An option of the method, such as penalty=1e-8: NAME=VALUE.", rich_help_panel=_SEARCH),
    ] = None,
    seeds: Annotated[Text, typer.Option(help="Seeds such as 0,1,2.", show_default="0", rich_help_panel=_SEARCH)] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.", rich_help_panel=_WHERE)] = "auto",
    root: Annotated[Text, typer.Option(help="Folder of the data sets.", rich_help_panel=_WHERE)] = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch missing data.", rich_help_panel=_WHERE)] = False,
    compile: Annotated[bool, typer.Option(help="Compile the step (GPU).", rich_help_panel=_WHERE)] = True,
    graph: Annotated[bool, typer.Option(help="Replay it as a CUDA graph (GPU).", rich_help_panel=_WHERE)] = True,
    checkpoint_epochs: Annotated[int, typer.Option(help="Checkpoint every N epochs.", rich_help_panel=_WHERE)] = 1,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print the end alone.", rich_help_panel=_WHERE)] = False,
) -> None:
    """Search sparse subnetworks that train as well as the dense network (chapter 4, Algorithms 2 to 4).

    Every setting (method, init or rate, seed) is one run of rounds; after each, its ticket is retrained. Prints all tickets,
    the sparsest that matches the dense network and the best; writes tickets.jsonl, summary.json and tickets.svg.

    Examples:

        pare tickets --network digits-cnn --data digits --epochs 5 --rounds 3 --init -0.1,0,0.1

        pare tickets --network resnet20 --data cifar10 --method cs,imp,imp-c --init -0.2,-0.1,0 --store 2 --out runs/tickets

        pare tickets --network conv6 --data cifar10 --method imp --rate 0.15 --option dense_rate=0.2 --rounds 30

        pare tickets --out runs/tickets --resume

        pare tickets --config tickets.toml --storage /shared/tickets     (the same again for each further worker)
    """
    from paretorch.cli.tickets_table import watched, write_and_show
    from paretorch.sparsity.tickets import work

    recipe_flags = {
        "network": network,
        "data": data,
        "validation": validation,
        "epochs": epochs,
        "batch": batch,
        "lr": lr,
        "weight_decay": weight_decay,
        "schedule": schedule,
        "milestones": None if milestones is None else numbers(milestones, "--milestones"),
    }
    search_flags = {
        "method": None if method is None else [part.strip() for part in method.split(",")],
        "rounds": rounds,
        "init": None if init is None else numbers(init, "--init"),
        "rate": None if rate is None else numbers(rate, "--rate"),
        "store": store,
        "rewind": rewind,
        "options": _options(option) if option else None,
        "seeds": None if seeds is None else integers(seeds, "--seeds"),
    }
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
    given = _given(recipe_flags) | assignments(set_ or [])
    opened = _open(config, storage or out, resume or storage is not None, given, _given(search_flags), runtime)
    try:
        with watched(opened, quiet=quiet) as (tell, show):
            work(opened, runtime, tell, show)
    except KeyboardInterrupt:
        typer.echo(f"Continue with: {shlex.join(['pare', 'tickets', '--out', str(opened.path)])} --resume", err=True)
        raise
    except PareError:
        write_and_show(opened)
        raise
    write_and_show(opened)


def _open(
    config: Path | None,
    folder: Path | None,
    continues: bool,
    recipe_given: dict[str, Any],
    search_given: dict[str, Any],
    runtime: Runtime,
) -> "Storage":
    """The folder with all that is asked for in it; whatever is wrong is said before the folder is made."""
    from paretorch.sparsity.tickets import Bench, Storage

    values = {} if config is None else read_config(config)
    table = values.pop("tickets", {})
    if not isinstance(table, dict):
        raise ConfigError(f"{config}: tickets should be a table, such as [tickets] and below it rounds = 5.")
    if continues and folder is not None and config is None:
        if not recipe_given and not search_given:
            return Storage.open(folder)
        if (folder / "recipe.json").exists():
            values = Storage.open(folder).recipe.as_dict()
    source = str(config) if config is not None else "the command line"
    merged = {**values, **recipe_given}
    merged.setdefault("validation", _VALIDATION.get(merged.get("data", ""), 5000))
    recipe = recipe_from(merged, source)
    folder = folder or Path("runs") / f"tickets-{recipe.network}-{recipe.data}"
    exists = (folder / "recipe.json").exists()
    if exists and not continues:
        raise ConfigError(
            f"{folder} already holds a ticket search; continue it with --resume, join it with --storage, or choose another --out."
        )
    wanted = {**table, **search_given}
    searches = [] if exists and not wanted else _searches({"seeds": [recipe.seed], **wanted}, source)
    Bench.of(recipe, runtime)
    return Storage.join(folder, recipe, searches)


def _searches(wanted: dict[str, Any], source: str) -> "list[Search]":
    """Every method with every setting and seed."""
    from paretorch.sparsity.tickets import METHODS, Search, make_method

    names, seeds = [str(each) for each in _listed(wanted.pop("method", "cs"))], _listed(wanted.pop("seeds"))
    options, rounds = wanted.pop("options", {}), wanted.pop("rounds", None)
    varied = {name: _listed(wanted.pop(name)) for name in ("init", "rate") if name in wanted}
    rest = {name: wanted.pop(name) for name in ("store", "rewind") if name in wanted}
    if wanted:
        known = "init, method, options, rate, rewind, rounds, seeds, store"
        told = ", ".join(sorted(wanted))
        raise ConfigError(f"{source} has unknown fields of a ticket search: {told}; known are {known}.")
    if not isinstance(options, dict):
        raise ConfigError(f"{source}: options of a ticket search should be a table, such as penalty = 1e-8.")
    has = {name: {one.name for one in fields(make_method(name, {}))} for name in names}
    for each in options:
        if not any(each in own for own in has.values()):
            own = ", ".join(sorted(set().union(*has.values())))
            raise ConfigError(f"{' and '.join(names)}: there is no option {each!r}; there are: {own}.")
    for each in varied:
        if not any(METHODS[name].varies == each for name in names):
            told = f"runs of {' and '.join(names)} do not differ by {each}"
            raise ConfigError(f"--{each}: {told}; those of {_by('init')} differ by init, of {_by('rate')} by rate.")
    searches = []
    for name in names:
        settings = [{key: value for key, value in options.items() if key in has[name]}]
        own = METHODS[name].varies
        if own in varied:
            settings = [{**setting, own: value} for setting in settings for value in varied[own]]
        count = rounds if rounds is not None else 1 if METHODS[name].frozen else 5
        searches += [Search(make_method(name, one), count, seed=seed, **rest) for one in settings for seed in seeds]
    if len({search.name for search in searches}) < len(searches):
        raise ConfigError("Two of the runs would have one name: give each method, init, rate and seed once.")
    return searches


def _by(option: str) -> str:
    from paretorch.sparsity.tickets import METHODS

    return ", ".join(name for name, one in METHODS.items() if one.varies == option)


def _given(flags: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in flags.items() if value is not None}


def _options(texts: list[str]) -> dict[str, Any]:
    if wrong := next((text for text in texts if "=" not in text), None):
        raise ConfigError(f"--option takes NAME=VALUE, such as --option penalty=1e-8, not {wrong!r}.")
    return assignments(texts)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
