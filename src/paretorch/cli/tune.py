"""`pare tune`."""

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paretorch.cli.bar import epochs_bar
from paretorch.cli.train import make_recipe
from paretorch.cli.values import DATA, Number, Text, Whole, assignments, numbers
from paretorch.errors import DivergenceError, PareError
from paretorch.training.recipe import Recipe, Runtime

if TYPE_CHECKING:
    from paretorch.optim.tuning import Found

_WHAT = "What to tune"
_HOW = "How to train"
_SEARCH = "How to search"
_WHERE = "Where and with what"
_IMAGES = ("digits", "cifar10", "cifar100")
_VALIDATION = {"digits": 200, "ptb": 1, "ptb-char": 1, "multi30k": 1}
_METRICS = {
    "test_accuracy": ("validation error", " %"),
    "test_f1": ("validation 100 − F1", " %"),
    "test_bleu": ("validation 100 − BLEU", ""),
    "test_bpc": ("validation bits per character", ""),
    "test_perplexity": ("validation perplexity", ""),
    "test_frechet": ("Fréchet distance", ""),
    "test_loss": ("validation loss", ""),
}

_START = {"sgd": (0.1, 0.0), "avagrad": (0.1, 0.1), "avagradw": (0.1, 0.1), "adabelief": (1e-3, 1e-16)}
"""Where a search begins: the optimizer's usual setting, for most Adam's."""


def tune(
    config: Annotated[
        Path | None, typer.Option(help="A TOML or JSON file of recipe fields, or a run's config.json.")
    ] = None,
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
    network: Annotated[Text, typer.Option(help="A network of the zoo.", rich_help_panel=_WHAT)] = None,
    data: Annotated[Text, typer.Option(help=f"{', '.join(DATA)}.", rich_help_panel=_WHAT)] = None,
    optimizer: Annotated[
        Text, typer.Option(help="As for pare train.", show_default="avagrad", rich_help_panel=_WHAT)
    ] = None,
    validation: Annotated[
        Whole,
        typer.Option(
            help="Training images held out to judge by; of text its validation part.",
            show_default="5000, digits 200",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    epochs: Annotated[Whole, typer.Option(help="Epochs of a trial.", rich_help_panel=_HOW)] = None,
    batch: Annotated[Whole, typer.Option(help="As for pare train.", rich_help_panel=_HOW)] = None,
    weight_decay: Annotated[Number, typer.Option(help="Weight decay.", rich_help_panel=_HOW)] = None,
    schedule: Annotated[
        Text, typer.Option(help="constant, cosine, linear, onecycle, steps.", rich_help_panel=_HOW)
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Any other recipe field: NAME=VALUE.", rich_help_panel=_HOW)
    ] = None,
    method: Annotated[
        str, typer.Option(help="cgld, gld, tpe, cmaes, random or grid.", rich_help_panel=_SEARCH)
    ] = "cgld",
    trials: Annotated[int, typer.Option(help="Settings to try, all workers together.", rich_help_panel=_SEARCH)] = 30,
    alphas: Annotated[
        Text, typer.Option(help="Learning rates.", show_default="the thesis' 21", rich_help_panel=_SEARCH)
    ] = None,
    epsilons: Annotated[
        Text, typer.Option(help="Values of ε.", show_default="the thesis' 21", rich_help_panel=_SEARCH)
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.", rich_help_panel=_WHERE)] = "auto",
    root: Annotated[Text, typer.Option(help="Folder of the data sets.", rich_help_panel=_WHERE)] = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch missing data.", rich_help_panel=_WHERE)] = False,
    compile: Annotated[bool, typer.Option(help="Compile the step (GPU).", rich_help_panel=_WHERE)] = True,
    graph: Annotated[bool, typer.Option(help="Replay it as a CUDA graph (GPU).", rich_help_panel=_WHERE)] = True,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print the end alone.", rich_help_panel=_WHERE)] = False,
) -> None:
    """Find learning rate and ε of an optimizer on held-out data, and say which to use (chapter 6).

    The same command continues what was stopped, and on another terminal or machine joins it. Trials that diverge are
    ended early. Writes tuning.json, heatmap.svg and suboptimality.svg.

    Examples:

        pare tune --network digits-cnn --data digits --epochs 3 --trials 20

        pare tune --network resnet20 --data cifar10 --epochs 20 --optimizer adam --method gld --root data

        pare tune --config recipe.toml --method grid --trials 441 --storage sqlite:////shared/tune.db

        pare tune --network resnet20 --data cifar10 --epochs 20 --alphas 0.1,0.5,1,5 --epsilons 0.1
    """
    from paretorch.optim import tuning

    flags = {
        "network": network,
        "data": data,
        "optimizer": optimizer,
        "validation": validation,
        "epochs": epochs,
        "batch": batch,
        "weight_decay": weight_decay,
        "schedule": schedule,
    }
    given = {name: value for name, value in flags.items() if value is not None} | assignments(set_ or [])
    recipe = make_recipe(config, {"optimizer": "avagrad", **given} if config is None else given)
    if recipe.validation == 0:
        recipe = replace(recipe, validation=_VALIDATION.get(recipe.data, 5000))
    runtime = Runtime(root, download, device, compile, graph, progress="quiet")
    rates = tuning.alpha_grid() if alphas is None else numbers(alphas, "--alphas")
    smoothing = tuning.eps_grid(recipe.optimizer) if epsilons is None else numbers(epsilons, "--epsilons")
    smoothing = [0.0] if recipe.optimizer == "sgd" else smoothing
    folder = out or Path("runs") / f"tune-{recipe.optimizer}-{recipe.network}-{recipe.data}"
    facts = {name: value for name, value in recipe.as_dict().items() if name not in ("lr", "eps")}
    trial = _Trial(recipe, runtime, folder)

    count = min(trials, len(rates) * len(smoothing))

    def tell(found: "Found", alpha: float, eps: float) -> None:
        _write(found, recipe, trial, folder)
        if quiet:
            return
        error = found.errors[list(found.alphas).index(alpha), list(found.epsilons).index(eps)]
        said = "diverged" if error != error else trial.told(error)
        line = f"[{len(found.order)}/{count}] {_words(recipe, alpha, eps)}: {said}"
        if bar is None:
            typer.echo(line)
        else:
            bar.console.print(line, highlight=False)
            bar.watch(len(found.order) * recipe.epochs, count * recipe.epochs)

    # Everything that a wrong recipe can break comes before the storage is made.
    trial.check()
    with contextlib.nullcontext() if quiet else epochs_bar() as bar:
        found = tuning.search(
            trial,
            rates,
            smoothing,
            method=method,
            trials=trials,
            storage=storage or folder / "trials.journal",
            seed=recipe.seed,
            first=_START.get(recipe.optimizer, (1e-3, 1e-8)),
            facts=facts,
            tell=tell,
        )
    _write(found, recipe, trial, folder)
    typer.echo(_recommendation(found, recipe, trial))


class _Trial:
    """Trains one setting into a folder of its own, from its checkpoint where an earlier worker left one."""

    def __init__(self, recipe: Recipe, runtime: Runtime, folder: Path) -> None:
        self.recipe, self.runtime, self.folder = recipe, runtime, folder
        self.metric = "test_loss"
        self._limit = float("inf")
        self._images: Any = None

    def check(self) -> None:
        """Build everything once; what the untrained network loses tells what divergence is."""
        from paretorch import zoo
        from paretorch.training.progress import headline
        from paretorch.training.run import prepare

        if self.recipe.data in _IMAGES:
            self._images = zoo.data.load(self.recipe.data, self.runtime.root, self.runtime.download)
        setup = prepare(self.recipe, self.runtime, self._images)
        untrained = setup.task.evaluate(setup.model.eval())
        self.metric = headline(untrained)
        self._limit = 2 * untrained.get("test_loss", float("inf"))

    def __call__(self, alpha: float, eps: float, beat: Callable[[], None]) -> float:
        from paretorch.training.folder import RunFolder
        from paretorch.training.run import prepare, trainer_of

        recipe = replace(self.recipe, lr=alpha, eps=eps or None)
        limit = self._limit

        class Watched(RunFolder):
            """Says after each epoch that the worker lives, and ends what is worse than no training at all."""

            def append(self, row: dict[str, Any]) -> int:
                beat()
                loss = row.get("loss", 0.0)
                if not loss <= limit:
                    raise DivergenceError(f"The loss is {loss:g}, twice that of the untrained network.")
                return super().append(row)

        setup = prepare(recipe, self.runtime, self._images)
        folder = Watched(self.folder / f"lr{alpha:g}-eps{eps:g}", recipe, resume=True, device=setup.device)
        last = trainer_of(setup, recipe, folder, self.runtime).run(resume=True)
        folder.checkpoint.unlink(missing_ok=True)
        value = float(last[self.metric])
        if self.metric in ("test_accuracy", "test_f1"):
            return 100 * (1 - value)
        return 100 - value if self.metric == "test_bleu" else value

    def told(self, error: float) -> str:
        """The error with its name and unit."""
        label, unit = _METRICS[self.metric]
        return f"{label} {error:.4g}{unit}"


def _words(recipe: Recipe, alpha: float, eps: float) -> str:
    return f"lr {alpha:g}" if recipe.optimizer == "sgd" else f"lr {alpha:g}, eps {eps:g}"


def _recommendation(found: "Found", recipe: Recipe, trial: _Trial) -> str:
    count, diverged = len(found.order), int((found.tried & (found.errors != found.errors)).sum())
    if found.best is None:
        raise PareError(f"All {count} settings diverged: give smaller learning rates, such as --alphas 1e-6,1e-5,1e-4.")
    alpha, eps, error = found.best
    flags = f"--optimizer {recipe.optimizer} --lr {alpha:g}"
    flags += "" if recipe.optimizer == "sgd" else f" --set eps={eps:g}"
    edge = len(found.alphas) > 2 and alpha in (min(found.alphas), max(found.alphas))
    hint = "; this lr is the last of --alphas, so try further ones" if edge else ""
    return f"Recommended: {flags} ({trial.told(error)}, best of {count} settings, {diverged} diverged{hint})"


def _write(found: "Found", recipe: Recipe, trial: _Trial, folder: Path) -> None:
    import numpy as np

    from paretorch.optim.tuning.plots import STEPS, heat_map
    from paretorch.report.curves import Curve, curves
    from paretorch.report.picture import save
    from paretorch.training.files import write_atomically

    label, unit = _METRICS[trial.metric]
    rows = [
        {"lr": found.alphas[i], "eps": found.epsilons[j], "error": None if (e := found.errors[i, j]) != e else float(e)}
        for i, j in found.order
    ]
    best = found.best
    content = {"recipe": recipe.as_dict(), "error": label + unit, "trials": rows, "best": best}
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "tuning.json", (json.dumps(content, indent=1) + "\n").encode())
    if best is None:
        return
    steps = STEPS if unit == " %" else [step * abs(best[2]) / 100 for step in STEPS]
    title = f"{label} of {recipe.optimizer}, {recipe.network} on {recipe.data}"
    chart = heat_map(title, found.alphas, found.epsilons, found.errors, found.tried, steps, unit)
    save(chart, folder / "heatmap.svg")
    gaps = found.best_so_far - best[2]
    shown = np.flatnonzero(np.isfinite(gaps))
    series = {recipe.optimizer: Curve(shown + 1, gaps[shown], gaps[shown], gaps[shown])}
    name = f"gap to the best {label} found{unit}"
    save(curves("Suboptimality", series, x_label="settings tried", y_label=name), folder / "suboptimality.svg")
