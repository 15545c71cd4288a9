"""The commands of `pare`, put together."""

from typing import Annotated

import typer

from paretorch.cli.bench import bench
from paretorch.cli.check import check
from paretorch.cli.data import data
from paretorch.cli.demo import demo
from paretorch.cli.export import export
from paretorch.cli.fold import fold
from paretorch.cli.guard import guarded
from paretorch.cli.report import report
from paretorch.cli.shrink import shrink
from paretorch.cli.study import study
from paretorch.cli.tickets import tickets
from paretorch.cli.train import train
from paretorch.cli.tune import tune
from paretorch.support.version import __version__

app = typer.Typer(
    help="Make PyTorch networks smaller and cheaper to train.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="markdown",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pare {__version__}")
        raise typer.Exit


@app.callback()
def _pare(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Make PyTorch networks smaller and cheaper to train."""


for command in (demo, shrink, train, tickets, fold, tune, report, export, bench, study, check, data):
    app.command()(guarded(command))
