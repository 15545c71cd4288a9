"""How `pare tickets` tells of itself: lines or a bar while it works, two tables at the end."""

import contextlib
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from paretorch.cli.bar import epochs_bar
from paretorch.workflows.tickets import Result, Storage, collect
from paretorch.workflows.tickets.result import write_result

Row = dict[str, Any]
_MOST_SHOWN = 60  # tickets; more are a file to look into


@contextlib.contextmanager
def watched(storage: Storage, *, quiet: bool) -> Iterator[tuple[Callable[[str], None], Callable[[Row], None]]]:
    """Functions to tell a line and to show a row; on a terminal with a bar over the epochs of all workers."""
    if quiet:
        yield (lambda words: None), (lambda row: None)
        return
    with epochs_bar() as bar:
        tell: Callable[[str], None] = typer.echo if bar is None else bar.tell
        over = threading.Event()

        def look() -> None:
            while bar is not None and not over.wait(1.0):
                bar.watch(*storage.epochs())

        looking = threading.Thread(target=look, daemon=True)
        looking.start()
        try:
            yield tell, (lambda row: tell(_line(row)))
        finally:
            over.set()
            looking.join()
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
        typer.echo(f"  sparsest matching: {_told(one.sparsest)}")
        typer.echo(f"  best performing:   {_told(one.best)}")
    typer.echo("accuracy is that on the validation split, by which tickets are chosen; the test set decides nothing.")


def _told(row: Row | None) -> str:
    if row is None:
        return "none is as accurate as the dense network"
    return (
        f"{_percent(row['sparsity'])} zeros, accuracy {_percent(row['accuracy'])} (test {_percent(row['test_accuracy'])}): "
        f"{row['search']} round {row['round']}, {row['search_epochs']} epochs of search, {row['epochs']} with retraining"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"
