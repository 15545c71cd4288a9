"""The commands of `pare`, put together."""

import typer

from paretorch.cli.bench import bench
from paretorch.cli.data import data
from paretorch.cli.demo import demo
from paretorch.cli.export import export
from paretorch.cli.fold import fold
from paretorch.cli.guard import guarded
from paretorch.cli.report import report
from paretorch.cli.study import study
from paretorch.cli.tickets import tickets
from paretorch.cli.train import train
from paretorch.cli.tune import tune

app = typer.Typer(
    help="Make PyTorch networks smaller and cheaper to train.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="markdown",
)
for command in (demo, train, tickets, fold, tune, report, export, bench, study, data):
    app.command()(guarded(command))
