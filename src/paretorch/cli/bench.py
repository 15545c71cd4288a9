"""`pare bench`."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paretorch.cli.finished import DEFAULT, FLAGS, HELP
from paretorch.cli.options import Text, Whole, go_with, numbers
from paretorch.cli.recipe_flags import RecipeFields, recipe_flags
from paretorch.errors import ConfigError

if TYPE_CHECKING:
    from paretorch.cli.bench_points import Bench
    from paretorch.cli.bench_sources import Source

_FINETUNE = 40  # epochs


@recipe_flags(
    *FLAGS,
    help={**HELP, "data": "What is measured on: digits, cifar10, cifar100, folder:PATH, …"},
    default={**DEFAULT, "data": "that of the runs"},
)
def bench(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, folders of runs, or artefacts.", show_default=False)],
    *,
    flags: RecipeFields,
    out: Annotated[Path, typer.Option(help="Where bench.svg, bench.json, bench.txt and the files go.")] = Path("bench"),
    prune: Annotated[
        Text, typer.Option(help="Prune the dense runs by magnitude too: shares such as 0.5,0.8,0.9.")
    ] = None,
    prune_by: Annotated[
        Text, typer.Option(help="What --prune takes away: weights, channels, or both in turn.", show_default="both")
    ] = None,
    finetune: Annotated[
        Whole, typer.Option(min=1, help="Epochs of training after --prune.", show_default=str(_FINETUNE))
    ] = None,
    channels_by: Annotated[
        Text,
        typer.Option(help="magnitude or torch-pruning chooses the channels of --prune.", show_default="magnitude"),
    ] = None,
    title: Annotated[Text, typer.Option(help="Of the picture.", show_default="the network and its data")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")] = "auto",
    root: Annotated[Text, typer.Option(help="Folder of the data sets.")] = None,
) -> None:
    """Draw accuracy against bytes on disk, with the files that others would write beside ours.

    Of a dense run these are fp32, fp16, int8 weights and onnxruntime's int8; of a run that was pruned by another's method, its weights
    in fp16 under zstd; with --prune, the dense network without its smallest weights or channels. All files are written, and
    measured as they are read back. What was measured is not measured again.

    Examples:

        pare bench runs/deploy-resnet20 --root data --out bench

        pare bench runs/dense runs/small --prune 0.5,0.8,0.9 --finetune 40

        pare bench model.pare --data cifar10 --root data

        pare bench runs/dense runs/small --network mine.py:build
    """
    from paretorch.cli.bench_points import Bench
    from paretorch.cli.bench_sources import KINDS, find_sources, pruned
    from paretorch.training.run import choose_device
    from paretorch.training.runtime import Runtime

    shares = numbers(prune, "--prune") if prune else []
    if not all(0 < share < 1 for share in shares):
        raise ConfigError(f"--prune takes shares above 0 and below 1, such as 0.5,0.8, not {prune}")
    go_with("--prune", bool(shares), {"--prune-by": prune_by, "--finetune": finetune, "--channels-by": channels_by})
    if prune_by not in (None, "both", *KINDS):
        raise ConfigError(f"--prune-by takes weights, channels or both, not {prune_by}")
    sources, unfinished = find_sources(runs, flags, out, root, device)
    dense = [source for source in sources if source.is_dense]
    if shares and not dense:
        raise ConfigError("--prune needs a dense run to prune: give its folder too")
    for folder in unfinished:
        _log(f"{folder}: not finished, left out")
    first = sources[0].finished
    own = (lambda: first.task) if first.own_data else None
    found = Bench(sources[0].data, out, root=root, device=choose_device(device), log=_log, own=own)
    for source in sources:
        found.add(source)
    # What is printed may be JSON: while networks are fine-tuned, a bar on a terminal or nothing.
    seen = sys.stdout.isatty() and not as_json
    runtime = Runtime(root=root, device=device, progress="bar" if seen else "quiet")
    for source in dense:
        kinds = KINDS if prune_by in (None, "both") else (prune_by,)
        for one in pruned(
            source, shares, finetune or _FINETUNE, out / "pruned", runtime, kinds, channels_by or "magnitude"
        ):
            found.add(one)
    _write_and_show(found, title or _title(sources), out, as_json)


def _write_and_show(found: "Bench", title: str, out: Path, as_json: bool) -> None:
    """The picture, the table and the record, as files; one of the last two is printed."""
    from paretorch.report.pareto import as_text, draw
    from paretorch.training.files import write_atomically

    for family, reason in found.missing.items():
        _log(f"{family}: left out, {reason}")
    points = found.points()
    if not points:
        raise ConfigError("No file could be written, so there is nothing to draw")
    text = as_text(points)
    write_atomically(out / "bench.svg", draw(title, points).encode())
    write_atomically(out / "bench.txt", (text + "\n").encode())
    written = found.write()
    typer.echo(json.dumps(found.record(), indent=1) if as_json else text)
    _log(f"{out / 'bench.svg'}, {out / 'bench.txt'}, {written}")


def _title(sources: Sequence["Source"]) -> str:
    networks = ", ".join(dict.fromkeys(one.recipe.network for one in sources if one.recipe is not None))
    return f"{networks or 'networks'} on {sources[0].data}: accuracy against bytes on disk"


def _log(line: str) -> None:
    """Beside what is printed, which may be JSON."""
    typer.echo(line, err=True)
