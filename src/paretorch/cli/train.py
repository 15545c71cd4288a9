"""`pare train`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from paretorch.cli.values import DATA, Number, Text, Whole, assignments, numbers
from paretorch.training.recipe import (
    OPTIMIZERS,
    PRUNING,
    QUANTIZATION,
    Recipe,
    Runtime,
    parse_bytes,
    read_config,
    recipe_from,
)

_WHAT = "What to train"
_HOW = "How to train"
_SMALL = "How small"
_WHERE = "Where and with what"

_METRICS = {
    "test_accuracy": "test accuracy {:.2%}",
    "test_f1": "test F1 {:.4f}",
    "test_bpc": "test {:.4f} bits per character",
    "test_perplexity": "test perplexity {:.2f}",
    "test_bleu": "test BLEU {:.2f}",
    "test_frechet": "Fréchet distance {:.3f}",
}


def train(
    config: Annotated[
        Path | None, typer.Option(help="A TOML or JSON file of recipe fields, or a run's config.json.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder.", show_default="runs/NETWORK-DATA-seedSEED")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out where its checkpoint is.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print layers, groups and expected bytes; stop.")] = False,
    network: Annotated[Text, typer.Option(help="A network of the zoo.", rich_help_panel=_WHAT)] = None,
    data: Annotated[Text, typer.Option(help=f"{', '.join(DATA)}.", rich_help_panel=_WHAT)] = None,
    start: Annotated[Text, typer.Option(help="An artefact whose weights to begin with.", rich_help_panel=_WHAT)] = None,
    seed: Annotated[Whole, typer.Option(help="Decides every random number.", rich_help_panel=_WHAT)] = None,
    epochs: Annotated[Whole, typer.Option(help="Epochs until decisions are rounded.", rich_help_panel=_HOW)] = None,
    finetune: Annotated[Whole, typer.Option(help="Epochs after that.", rich_help_panel=_HOW)] = None,
    batch: Annotated[
        Whole,
        typer.Option(
            help="Images, grids, columns of text or (multi30k) tokens a side, per step.", rich_help_panel=_HOW
        ),
    ] = None,
    optimizer: Annotated[Text, typer.Option(help=f"{', '.join(OPTIMIZERS)}.", rich_help_panel=_HOW)] = None,
    lr: Annotated[Number, typer.Option(help="Learning rate.", rich_help_panel=_HOW)] = None,
    weight_decay: Annotated[Number, typer.Option(help="Weight decay.", rich_help_panel=_HOW)] = None,
    schedule: Annotated[
        Text, typer.Option(help="constant, cosine, linear, onecycle, steps.", rich_help_panel=_HOW)
    ] = None,
    milestones: Annotated[Text, typer.Option(help="Epochs of the drops, such as 80,120.", rich_help_panel=_HOW)] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Any other recipe field: NAME=VALUE.", rich_help_panel=_HOW)
    ] = None,
    sparsity: Annotated[Number, typer.Option(help="Fraction of zeros, such as 0.95.", rich_help_panel=_SMALL)] = None,
    pruning: Annotated[
        Text, typer.Option(help=f"By which method: {', '.join(PRUNING)}.", show_default="cs", rich_help_panel=_SMALL)
    ] = None,
    bits: Annotated[Number, typer.Option(help="Bits per weight, such as 2.0.", rich_help_panel=_SMALL)] = None,
    quantization: Annotated[
        Text,
        typer.Option(help=f"By which method: {', '.join(QUANTIZATION)}.", show_default="smol", rich_help_panel=_SMALL),
    ] = None,
    activation_bits: Annotated[
        Number, typer.Option(help="Bits per activation, such as 4.0.", rich_help_panel=_SMALL)
    ] = None,
    budget: Annotated[Text, typer.Option(help="Bytes of the artefact, such as 48KB.", rich_help_panel=_SMALL)] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.", rich_help_panel=_WHERE)] = "auto",
    root: Annotated[Text, typer.Option(help="Folder of the data sets.", rich_help_panel=_WHERE)] = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch missing data.", rich_help_panel=_WHERE)] = False,
    compile: Annotated[bool, typer.Option(help="Compile the step (GPU).", rich_help_panel=_WHERE)] = True,
    graph: Annotated[bool, typer.Option(help="Replay it as a CUDA graph (GPU).", rich_help_panel=_WHERE)] = True,
    checkpoint_epochs: Annotated[int, typer.Option(help="Checkpoint every N epochs.", rich_help_panel=_WHERE)] = 1,
    checkpoint_steps: Annotated[
        int, typer.Option(help="And every N steps within an epoch; 0: not.", rich_help_panel=_WHERE)
    ] = 0,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print nothing while training.", rich_help_panel=_WHERE)
    ] = False,
) -> None:
    """Train a network, dense or compressed, into a run folder.

    Examples:

        pare train --network digits-cnn --data digits --epochs 20

        pare train --network resnet20 --data cifar10 --download --sparsity 0.95 --bits 2 --finetune 40

        pare train --network resnet20 --data cifar10 --pruning gmp --sparsity 0.9 --epochs 160 --finetune 40

        pare train --network resnet20 --data cifar10 --quantization lsq --bits 2 --epochs 200

        pare train --network lstm-300 --data ptb-char --optimizer avagrad --lr 1 --set clip_norm=0.25 --root data

        pare train --config recipe.toml --lr 0.05 --out runs/mine

        pare train --out runs/mine --resume
    """
    flags = {
        "network": network,
        "data": data,
        "start": start,
        "seed": seed,
        "epochs": epochs,
        "finetune": finetune,
        "batch": batch,
        "optimizer": optimizer,
        "lr": lr,
        "weight_decay": weight_decay,
        "schedule": schedule,
        "milestones": None if milestones is None else numbers(milestones, "--milestones"),
        "sparsity": sparsity,
        "pruning": pruning,
        "bits": bits,
        "quantization": quantization,
        "activation_bits": activation_bits,
        "budget": None if budget is None else parse_bytes(budget),
    }
    given = {name: value for name, value in flags.items() if value is not None} | assignments(set_ or [])
    if config is None and resume and out is not None and (out / "config.json").exists():
        config = out / "config.json"
    recipe = make_recipe(config, given)
    runtime = Runtime(
        root=root,
        download=download,
        device=device,
        compile=compile,
        graph=graph,
        checkpoint_epochs=checkpoint_epochs,
        checkpoint_steps=checkpoint_steps,
        progress="quiet" if quiet else "auto",
    )
    if dry_run:
        from paretorch.cli.dry_run import show_plan

        show_plan(recipe, runtime)
        return
    from paretorch.training.run import train as run

    folder = out or Path("runs") / f"{recipe.network}-{recipe.data}-seed{recipe.seed}"
    result = run(recipe, folder, runtime, resume=resume)
    if not quiet:
        typer.echo(f"{folder}: {_told(result)}")


def make_recipe(config: Path | None, given: dict[str, Any]) -> Recipe:
    """Defaults, then the file, then the flags."""
    values: dict[str, Any] = {} if config is None else read_config(config)
    values = values.get("recipe", values) if isinstance(values.get("recipe"), dict) else values
    return recipe_from({**values, **given}, str(config) if config is not None else "the command line")


def _told(result: dict[str, Any]) -> str:
    parts = _metrics(result, "")
    if result.get("evaluated_on") == "validation":
        parts = [part.replace("test", "validation", 1) for part in parts] + _metrics(result, "final_")
    parts += [f"sparsity {100 * result['sparsity']:.2f} %"] if "sparsity" in result else []
    parts += [f"{result['bits']:.2f} bits per weight"] if "bits" in result else []
    parts += [f"{result['activation_bits']:.2f} bits per activation"] if "activation_bits" in result else []
    return ", ".join([*parts, f"{result['bytes']:,} bytes ({result['dense_bytes']:,} as plain tensors)"])


def _metrics(result: dict[str, Any], before: str) -> list[str]:
    found = {name: result[before + name] for name in _METRICS if before + name in result}
    return [_METRICS[name].format(value).replace("%", " %") for name, value in found.items()]
