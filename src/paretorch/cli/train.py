"""`pare train`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from paretorch.cli import options
from paretorch.cli.options import WHERE
from paretorch.cli.recipe_flags import RecipeFields, make_recipe, recipe_flags
from paretorch.errors import ConfigError
from paretorch.training.recipe import Recipe
from paretorch.training.runtime import Runtime

_METRICS = {
    "test_accuracy": "test accuracy {:.2%}",
    "test_f1": "test F1 {:.4f}",
    "test_bpc": "test {:.4f} bits per character",
    "test_perplexity": "test perplexity {:.2f}",
    "test_bleu": "test BLEU {:.2f}",
    "test_frechet": "Fréchet distance {:.3f}",
}


@recipe_flags(
    "network",
    "data",
    "start",
    "seed",
    "epochs",
    "finetune",
    "batch",
    "optimizer",
    "lr",
    "weight_decay",
    "schedule",
    "milestones",
    "teacher",
    "teacher_weight",
    "sparsity",
    "pruning",
    "bits",
    "quantization",
    "activation_bits",
    "activations",
    "budget",
)
def train(
    config: options.Config = None,
    out: Annotated[Path | None, typer.Option(help="The run folder.", show_default="runs/NETWORK-DATA-seedSEED")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out where its checkpoint is.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print layers, groups and expected bytes; stop.")] = False,
    *,
    flags: RecipeFields,
    device: options.Device = "auto",
    root: options.Root = None,
    download: options.Download = False,
    compile: options.Compile = None,
    graph: options.Graph = True,
    checkpoint_epochs: options.CheckpointEpochs = 1,
    checkpoint_steps: Annotated[
        int, typer.Option(help="And every N steps within an epoch; 0: not.", rich_help_panel=WHERE)
    ] = 0,
    track: options.Track = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="The same as --track tensorboard.", rich_help_panel=WHERE)
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print nothing while training.", rich_help_panel=WHERE)
    ] = False,
) -> None:
    """Train a network, dense or compressed, into a run folder.

    Examples:

        pare train --network digits-cnn --data digits --epochs 20

        pare train --network resnet20 --data cifar10 --download --sparsity 0.95 --bits 2 --finetune 40

        pare train --network resnet20 --data cifar10 --pruning gmp --sparsity 0.9 --epochs 160 --finetune 40

        pare train --network resnet20 --data cifar10 --quantization lsq --bits 2 --epochs 200

        pare train --network lstm-300 --data ptb-char --optimizer avagrad --lr 1 --set clip_norm=0.25 --root data

        pare train --network vgg16 --data cifar10 --sparsity 0.9 --set sparsity_options.group=channel --set optimizer.momentum=0.8

        pare train --network resnet20 --data cifar10 --start dense/model.pare --teacher dense/model.pare --bits 3 --epochs 10

        pare train --config recipe.toml --lr 0.05 --out runs/mine

        pare train --network digits-cnn --data digits --sparsity 0.9 --track wandb --track mlflow

        pare train --out runs/mine --resume
    """
    if config is None and resume and out is not None:
        if (out / "config.json").exists():
            from paretorch.cli.inputs import recipe_of

            recipe_of(out)  # for the errors alone: what is damaged is not to be taken for the defaults
            config = out / "config.json"
        elif not flags:
            raise ConfigError(f"{out} holds no run to continue; leave --resume out to begin one with the defaults.")
    recipe = make_recipe(config, flags)
    runtime = Runtime(
        root=root,
        download=download,
        device=device,
        compile=compile,
        graph=graph,
        checkpoint_epochs=checkpoint_epochs,
        checkpoint_steps=checkpoint_steps,
        progress="quiet" if quiet else "auto",
        track=tuple(dict.fromkeys([*(track or ()), *(["tensorboard"] if tensorboard else [])])),
    )
    if dry_run:
        from paretorch.cli.dry_run import show_plan

        show_plan(recipe, runtime)
    else:
        _train(recipe, out, runtime, resume, quiet)


def _train(recipe: Recipe, out: Path | None, runtime: Runtime, resume: bool, quiet: bool) -> None:
    from paretorch.training.run import train as run

    folder = out or Path("runs") / f"{recipe.network}-{recipe.data.name}-seed{recipe.seed}"
    result = run(recipe, folder, runtime, resume=resume)
    if not quiet:
        typer.echo(f"{folder}: {_told(result)}")


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
