"""`pare demo`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from paretorch.cli.lines import say


def demo(
    out: Annotated[Path, typer.Option(help="Where to write.")] = Path("demo-run"),
    budget: Annotated[str, typer.Option(help="Bytes of the artefact.")] = "12KB",
    seed: Annotated[int, typer.Option(help="Decides every random number.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")] = "auto",
) -> None:
    """Train a small network on digits, compress it to a byte budget, and compare; about a minute on two cores.

    Examples:

        pare demo

        pare demo --budget 8KB --out small-demo
    """
    from rich.console import Console

    from paretorch.support.text import parse_bytes
    from paretorch.workflows.demo import run_demo

    rows = run_demo(out, budget=parse_bytes(budget), seed=seed, device=device)
    Console().print(_table(*rows))
    say(f"The compressed network is {out}/model.pare, a page about it {out}/report.html.")


def _table(dense: dict[str, Any], small: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table(title="dense and compressed, side by side")
    table.add_column("")
    for name in ("dense", "compressed"):
        table.add_column(name, justify="right")
    columns = {
        "accuracy": lambda row: f"{100 * row['accuracy']:.2f} %",
        "bits per weight": lambda row: f"{row['bits']:.2f}",
        "sparsity": lambda row: f"{100 * row['sparsity']:.1f} %",
        "bytes on disk": lambda row: f"{row['bytes']:,}",
        "latency, 64 images": lambda row: "-" if row["latency"] is None else row["latency"],
    }
    for label, show in columns.items():
        table.add_row(label, show(dense), show(small))
    return table
