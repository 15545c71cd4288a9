"""`pare check`."""

import json
from pathlib import Path
from typing import Annotated

import typer


def check(
    path: Annotated[
        Path,
        typer.Argument(
            help="A run folder, the folder of a study, of tickets, of pare tune or of pare shrink, a checkpoint.pt, "
            "a journal or SQLite file of trials, or a .pare file."
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Verify files: checksums, shapes, rows, environment; say what can be saved. Exit code 1 if anything is damaged.

    Nothing is changed, and nothing in the files is run.

    Examples:

        pare check runs/mine

        pare check runs/sparsity-resnet20 --json

        pare check model.pare
    """
    from paretorch.workflows.check import check as look

    found = look(path)
    if as_json:
        typer.echo(json.dumps(found.as_dict(), indent=2))
    else:
        for line in found.lines():
            typer.echo(line)
    if not found.is_whole:
        raise typer.Exit(1)
