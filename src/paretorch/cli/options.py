"""What several commands share: the options that are not of the recipe, reading values from text, and a progress bar.

The options of the recipe are in `paretorch.cli.recipe_flags`; options of one command are in its file.
"""

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from paretorch.errors import ConfigError
from paretorch.training.tasks.choose_disk import IMAGENET
from paretorch.training.tasks.images import IMAGES

DATA = (*IMAGES, IMAGENET, "ptb", "ptb-char", "multi30k", "shortest-paths")
"""What --data takes."""

# Options that may be left out.
Text = str | None
Number = float | None
Whole = int | None


def assignments(texts: list[str] | None, example: str = "--set cutout=8") -> dict[str, Any]:
    """NAME=VALUE with the value as JSON, or as text where it is none; an error shows the example."""
    made: dict[str, Any] = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise ConfigError(f"{example.split()[0]} takes NAME=VALUE, such as {example}, not {text!r}")
        try:
            made[name] = json.loads(value)
        except ValueError:
            made[name] = value
    return made


def given(**flags: Any) -> dict[str, Any]:
    """The options that were not left out."""
    return {name: value for name, value in flags.items() if value is not None}


def numbers(text: str, flag: str) -> list[float]:
    """'80,120' as numbers."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"{flag} takes numbers such as 80,120, not {text!r}") from error


def integers(text: str, flag: str) -> list[int]:
    """'0,1,2' as whole numbers."""
    if not all(part.strip().isdecimal() for part in text.split(",")):
        raise ConfigError(f"{flag} takes whole numbers such as 0,1,2, not {text!r}")
    return [int(part) for part in text.split(",")]


def go_with(partner: str, given: bool, options: Mapping[str, object]) -> None:
    """Refuse options that say something about another one which is not given: they would do nothing."""
    for flag, value in options.items():
        if value is not None and not given:
            raise ConfigError(f"{flag} is about {partner}: give that too, or leave {flag} out")


# The panels of --help.
WHAT = "What to train"
HOW = "How to train"
SMALL = "How small"
SEARCH = "How to search"
WHERE = "Where and with what"

Config = Annotated[Path | None, typer.Option(help="A TOML or JSON file of recipe fields, or a run's config.json.")]

Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.", rich_help_panel=WHERE)]
Root = Annotated[Text, typer.Option(help="Folder of the data sets.", rich_help_panel=WHERE)]
Download = Annotated[bool, typer.Option("--download", help="Fetch missing data.", rich_help_panel=WHERE)]
Compile = Annotated[
    bool | None,
    typer.Option(
        "--compile/--no-compile",
        help="Compile the step (GPU).",
        show_default="in runs so long that it pays",
        rich_help_panel=WHERE,
    ),
]
Graph = Annotated[bool, typer.Option(help="Replay it as a CUDA graph (GPU).", rich_help_panel=WHERE)]
CheckpointEpochs = Annotated[int, typer.Option(help="Checkpoint every N epochs.", rich_help_panel=WHERE)]
Workers = Annotated[
    Whole,
    typer.Option(
        min=0,
        help="Processes that read images from the disk; 0: none.",
        show_default="one per core",
        rich_help_panel=WHERE,
    ),
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Write the metrics there too: tensorboard, wandb or mlflow; may be given several times. Offline unless logged in.",
        rich_help_panel=WHERE,
    ),
]
Parallel = Annotated[
    Whole,
    typer.Option(
        min=1,
        help="Runs at a time; each has a GPU, round robin.",
        show_default="1; on a Ray cluster, one per GPU",
        rich_help_panel=WHERE,
    ),
]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        help="What runs them: local; or Ray: auto, the cluster of this machine, or ray://HOST.",
        rich_help_panel=WHERE,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print the end alone.", rich_help_panel=WHERE)]


class EpochsBar:
    """Shows how many epochs of all runs are done, and the time left."""

    def __init__(self, progress: Any) -> None:
        self._progress = progress
        self._task = progress.add_task("epochs", total=None)

    def log(self, words: str) -> None:
        """A line above the bar, as it is: brackets in it are no markup."""
        self._progress.console.print(words, markup=False, highlight=False, soft_wrap=True)

    def watch(self, done: int, total: int) -> None:
        """So many epochs are done, of so many."""
        self._progress.update(self._task, completed=done, total=total)


@contextlib.contextmanager
def epochs_bar() -> Iterator[EpochsBar | None]:
    """A bar on a terminal, None elsewhere."""
    if not sys.stdout.isatty():
        yield None
        return
    from rich.progress import Progress

    with Progress() as progress:
        yield EpochsBar(progress)
