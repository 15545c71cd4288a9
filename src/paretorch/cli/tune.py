"""`pare tune`."""

import contextlib
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from paretorch.cli import options
from paretorch.cli.options import SEARCH, Text, epochs_bar, numbers
from paretorch.cli.recipe_flags import HELD_OUT_SHOWN, RecipeFields, make_recipe, recipe_flags
from paretorch.errors import ConfigError, PareError
from paretorch.report.charts import Curve, curves
from paretorch.report.markup import save
from paretorch.support.files import write_file
from paretorch.training.recipe_values import by_place
from paretorch.training.runtime import Runtime
from paretorch.workflows.queue import choose_engine
from paretorch.workflows.tuning.plots import STEPS, heat_map
from paretorch.workflows.tuning.queued import QueuedTrials
from paretorch.workflows.tuning.trial import Trial, exactly
from paretorch.zoo.user_code import short_name

if TYPE_CHECKING:
    from paretorch.workflows.tuning import Found


_SEARCHED = ("optimizer.lr", "optimizer.eps")
_START = {"sgd": (0.1, 0.0), "avagrad": (0.1, 0.1), "avagradw": (0.1, 0.1), "adabelief": (1e-3, 1e-16)}
"""Where a search begins: the optimizer's usual setting, for most Adam's."""


@recipe_flags(
    "network",
    "data",
    "task",
    "validation",
    "epochs",
    "batch",
    "optimizer",
    "weight_decay",
    "schedule",
    help={
        "validation": "Training images held out to judge by; of text its validation part.",
        "epochs": "Epochs of a trial.",
    },
    default={"validation": HELD_OUT_SHOWN, "optimizer": "avagrad"},
)
def tune(
    config: options.Config = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder.", show_default="runs/tune-OPTIMIZER-NETWORK-DATA")
    ] = None,
    storage: Annotated[
        Text,
        typer.Option(
            help="A journal file or a URL such as sqlite:///tune.db that any number of workers share.",
            show_default="trials.journal in --out",
        ),
    ] = None,
    *,
    flags: RecipeFields,
    method: Annotated[
        str, typer.Option(help="cgld, gld, tpe, cmaes, random or grid.", rich_help_panel=SEARCH)
    ] = "cgld",
    trials: Annotated[int, typer.Option(help="Settings to try, all workers together.", rich_help_panel=SEARCH)] = 30,
    alphas: Annotated[
        Text, typer.Option(help="Learning rates.", show_default="the thesis' 21", rich_help_panel=SEARCH)
    ] = None,
    epsilons: Annotated[
        Text, typer.Option(help="Values of ε.", show_default="the thesis' 21", rich_help_panel=SEARCH)
    ] = None,
    device: options.Device = "auto",
    root: options.Root = None,
    download: options.Download = False,
    compile: options.Compile = None,
    graph: options.Graph = True,
    parallel: options.Parallel = None,
    engine: options.EngineName = "local",
    setting: Annotated[
        Text, typer.Option(help="The one setting to train; the caller has claimed it.", hidden=True)
    ] = None,
    quiet: options.Quiet = False,
) -> None:
    """Find learning rate and ε of an optimizer on held-out data, and say which to use (chapter 6).

    The same command continues what was stopped, and on another terminal or machine joins it. Trials that diverge are
    ended early. Writes tuning.json, heatmap.svg and suboptimality.svg.

    Examples:

        pare tune --network digits-cnn --data digits --epochs 3 --trials 20

        pare tune --network resnet20 --data cifar10 --epochs 20 --optimizer adam --method gld --root data

        pare tune --config recipe.toml --method grid --trials 441 --storage sqlite:////shared/tune.db

        pare tune --network resnet20 --data cifar10 --epochs 20 --alphas 0.1,0.5,1,5 --epsilons 0.1

        pare tune --network resnet20 --data cifar10 --epochs 20 --root data --parallel 8
    """
    from paretorch.workflows import tuning

    if searched := [name for name in ("lr", "eps") if f"optimizer.{name}" in flags]:
        raise ConfigError(f"pare tune searches {searched[0]}: give the values to try as --alphas and --epsilons")
    recipe = make_recipe(config, by_place({"optimizer": "avagrad"}, flags) if config is None else flags, holds_out=True)
    if not recipe.data.validation:
        raise ConfigError("Settings are chosen by held-out data, never by the test set: set validation, such as 5000")
    runtime = Runtime(root, download, device, compile, graph, progress="quiet")
    if recipe.optimizer.name == "sgd" and epsilons is not None:
        raise ConfigError("sgd has no ε: leave out --epsilons")
    rates = tuning.alpha_grid() if alphas is None else _values(alphas, "--alphas")
    smoothing = tuning.eps_grid(recipe.optimizer.name) if epsilons is None else _values(epsilons, "--epsilons")
    smoothing = [0.0] if recipe.optimizer.name == "sgd" else smoothing
    name = f"tune-{recipe.optimizer.name}-{short_name(recipe.network)}-{short_name(recipe.data.name)}"
    folder = out or Path("runs") / name
    trial = Trial(recipe, runtime, folder)
    # Everything that a wrong recipe can break comes before the storage is made.
    trial.check()
    if setting is not None:
        alpha, eps = map(float, setting.split(","))
        trial.train_once(alpha, eps)
        return
    runner = None if parallel is None and engine == "local" else choose_engine(engine, parallel, device)
    with show_trials(trial, min(trials, len(rates) * len(smoothing)), quiet=quiet) as (log, on_trial):
        found = tuning.search(
            trial if runner is None else QueuedTrials(trial, runner, _words(runtime), log),
            rates,
            smoothing,
            method=method,
            trials=trials,
            storage=storage or folder / "trials.journal",
            seed=recipe.seed,
            first=_START.get(recipe.optimizer.name, (1e-3, 1e-8)),
            facts={name: one for name, one in by_place(recipe.as_dict()).items() if name not in _SEARCHED},
            on_trial=on_trial,
            workers=1 if runner is None else runner.places,
        )
    write(found, trial)
    typer.echo(recommendation(found, trial))


def _words(runtime: Runtime) -> list[str]:
    """Where and how the process of a trial runs."""
    flags = {"--compile": runtime.compile is True, "--no-compile": runtime.compile is False}
    flags |= {"--no-graph": not runtime.graph}
    words = ["--device", runtime.device, *(["--root", runtime.root] if runtime.root else [])]
    return [*words, *(flag for flag, given in flags.items() if given)]


def _values(text: str, flag: str) -> list[float]:
    """In order: descent looks among neighbours, and so does a reader of the heat map."""
    found = numbers(text, flag)
    if not all(math.isfinite(value) and value > 0 for value in found) or len(set(found)) < len(found):
        raise ConfigError(f"{flag} takes positive numbers, each once, such as 0.1,0.5,1, not {text!r}")
    return sorted(found)


@contextlib.contextmanager
def show_trials(
    trial: Trial, count: int, *, quiet: bool
) -> Iterator[tuple[Callable[[str], None], Callable[["Found", float, float], None]]]:
    """Functions that print a line, and report each of `count` settings once it is tried; on a terminal with a bar over the epochs of all."""
    if quiet:
        yield (lambda line: None), (lambda found, alpha, eps: write(found, trial))
        return
    with epochs_bar() as bar:
        log: Callable[[str], None] = typer.echo if bar is None else bar.log

        def on_trial(found: "Found", alpha: float, eps: float) -> None:
            write(found, trial)
            line = f"[{len(found.order)}/{count}] {_describe(found, trial, alpha, eps)}"
            log(line)
            if bar is not None:
                bar.watch(len(found.order) * trial.recipe.epochs, count * trial.recipe.epochs)

        yield log, on_trial


def _describe(found: "Found", trial: Trial, alpha: float, eps: float) -> str:
    error = found.errors[list(found.alphas).index(alpha), list(found.epsilons).index(eps)]
    setting = f"lr {exactly(alpha)}" + ("" if trial.recipe.optimizer.name == "sgd" else f", eps {exactly(eps)}")
    return f"{setting}: {'diverged' if np.isnan(error) else trial.describe(error)}"


def recommendation(found: "Found", trial: Trial) -> str:
    """The flags to train with."""
    count, diverged = len(found.order), int((found.tried & np.isnan(found.errors)).sum())
    if found.best is None:
        raise PareError(f"All {count} settings diverged: give smaller learning rates, such as --alphas 1e-6,1e-5,1e-4")
    alpha, eps, error = found.best
    flags = f"--optimizer {trial.recipe.optimizer.name} --lr {exactly(alpha)}"
    flags += "" if trial.recipe.optimizer.name == "sgd" else f" --set eps={exactly(eps)}"
    edge = len(found.alphas) > 2 and alpha in (min(found.alphas), max(found.alphas))
    hint = "; this lr is the last of --alphas, so try further ones" if edge else ""
    return f"Recommended: {flags} ({trial.describe(error)}, best of {count} settings, {diverged} diverged{hint})"


def write(found: "Found", trial: Trial) -> None:
    """tuning.json, and the two pictures once there is a setting that did not diverge; other workers may write them at the same time."""
    rows = [
        {
            "lr": found.alphas[i],
            "eps": found.epsilons[j],
            "error": None if np.isnan(e := found.errors[i, j]) else float(e),
        }
        for i, j in found.order
    ]
    content = {"recipe": trial.recipe.as_dict(), "error": "".join(trial.error), "trials": rows, "best": found.best}
    trial.folder.mkdir(parents=True, exist_ok=True)
    write_file(trial.folder / "tuning.json", (json.dumps(content, indent=1) + "\n").encode())
    if found.best is not None:
        _draw(found, trial, found.best[2])


def _draw(found: "Found", trial: Trial, best: float) -> None:
    (label, unit), recipe = trial.error, trial.recipe
    steps = STEPS if unit == " %" else [float(f"{step * abs(best) / 100:.2g}") for step in STEPS]
    title = f"{label} of {recipe.optimizer.name}, {recipe.network} on {recipe.data.name}"
    chart = heat_map(title, found.alphas, found.epsilons, found.errors, found.tried, steps, unit)
    save(chart, trial.folder / "heatmap.svg")
    gaps = found.best_so_far - best
    shown = np.flatnonzero(np.isfinite(gaps))
    series = {recipe.optimizer.name: Curve(shown + 1, gaps[shown], gaps[shown], gaps[shown])}
    name = f"gap to the best {label} found{unit}"
    save(curves("Suboptimality", series, x_label="settings tried", y_label=name), trial.folder / "suboptimality.svg")
