"""`pare train`."""

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer
from torch import Tensor, nn

from paretorch.cli import options
from paretorch.cli.lines import say
from paretorch.cli.options import WHERE
from paretorch.cli.recipe_flags import RecipeFields, make_recipe, recipe_flags
from paretorch.errors import ConfigError, UndecidedWarning
from paretorch.training.progress import format_metric
from paretorch.training.recipe import Recipe
from paretorch.training.runtime import Runtime
from paretorch.zoo.user_code import short_name

if TYPE_CHECKING:
    from paretorch.core.plan import Plan
    from paretorch.training.run import Setup

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
    "task",
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
    shard: Annotated[
        bool,
        typer.Option("--shard", help="Under torchrun, share weights and states out (FSDP2).", rich_help_panel=WHERE),
    ] = False,
    accumulate: Annotated[
        int, typer.Option(min=1, help="Take each batch in N parts, one after another.", rich_help_panel=WHERE)
    ] = 1,
    workers: options.Workers = None,
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

        pare train --network mine.py:build --data folder:photos --set data.options.size=64 --task classify --sparsity 0.9

        pare train --config recipe.toml --lr 0.05 --out runs/mine

        pare train --network digits-cnn --data digits --sparsity 0.9 --track wandb --track mlflow

        pare train --out runs/mine --resume

        torchrun --nproc-per-node 4 --no-python pare train --network resnet20 --data cifar10 --shard --out runs/many --resume
    """
    if config is None and resume and out is not None:
        if (out / "config.json").exists():
            from paretorch.cli.inputs import recipe_of

            recipe_of(out)  # for the errors alone: what is damaged is not to be taken for the defaults
            config = out / "config.json"
        elif not flags:
            raise ConfigError(f"{out} holds no run to continue; leave --resume out to begin one with the defaults")
    recipe = make_recipe(config, flags)
    runtime = Runtime(
        root=root,
        download=download,
        device=device,
        compile=compile,
        graph=graph,
        checkpoint_epochs=checkpoint_epochs,
        checkpoint_steps=checkpoint_steps,
        shard=shard,
        accumulate=accumulate,
        workers=workers,
        progress="quiet" if quiet else "auto",
        track=tuple(dict.fromkeys([*(track or ()), *(["tensorboard"] if tensorboard else [])])),
    )
    if dry_run:
        show_plan(recipe, runtime)
    else:
        _train(recipe, out, runtime, resume, quiet)


def _train(recipe: Recipe, out: Path | None, runtime: Runtime, resume: bool, quiet: bool) -> None:
    from paretorch.training.launch import train as run

    name = f"{short_name(recipe.network)}-{short_name(recipe.data.name)}-seed{recipe.seed}"
    folder = out or Path("runs") / name
    result = run(recipe, folder, runtime, resume=resume)
    if not quiet and os.environ.get("RANK", "0") == "0":
        say(f"{folder}: {_summary(result)}")


def _summary(result: dict[str, Any]) -> str:
    parts = _metrics(result, "")
    if result.get("evaluated_on") == "validation":
        parts = [part.replace("test", "validation", 1) for part in parts] + _metrics(result, "final_")
    parts += [f"sparsity {_over(result, 'sparsity')}"] if "sparsity" in result else []
    parts += [f"{_over(result, 'bits')}"] if "bits" in result else []
    parts += [f"{result['activation_bits']:.2f} bits per activation"] if "activation_bits" in result else []
    return ", ".join([*parts, f"{result['bytes']:,} bytes ({result['dense_bytes']:,} as plain tensors)"])


def _over(result: dict[str, Any], name: str) -> str:
    """A number of the weights that were decided on and of all, as the report has it; once if these are the same weights."""

    def said(value: float) -> str:
        return f"{100 * value:.2f} %" if name == "sparsity" else f"{value:.2f} bits per weight"

    count, every, of_all = (result.get(key) for key in (f"{name}_weights", "weights", f"{name}_of_all"))
    if every is None or of_all is None:  # of a run of an earlier version
        return said(result[name])
    if count is None:
        return f"{said(result[name])} of the multiply-adds ({said(of_all)} of all {every:,} weights)"
    if count == every:
        return f"{said(result[name])} of all {every:,} weights"
    return f"{said(result[name])} of the {count:,} weights decided on ({said(of_all)} of all {every:,})"


def _metrics(result: dict[str, Any], before: str) -> list[str]:
    found = {name: result[before + name] for name in _METRICS if before + name in result}
    if not found and f"{before}test_loss" in result:  # all there is of a regression
        return [f"test loss {format_metric('test_loss', result[f'{before}test_loss'])}"]
    return [_METRICS[name].format(value).replace("%", " %") for name, value in found.items()]


def show_plan(recipe: Recipe, runtime: Runtime) -> None:
    """Print layers, groups, parameters, steps and expected bytes."""
    from rich.console import Console
    from rich.table import Table

    from paretorch.training.run import prepare

    setup = prepare(recipe, runtime)
    console = Console()
    table = Table(title=f"{recipe.network} on {recipe.data.name}")
    for column in ("layer", "shape", "weights", "sparsity groups", "precision groups"):
        table.add_column(column, justify="left" if column == "layer" else "right")
    for name, weight, groups in _layers(setup.model):
        shape = "×".join(str(size) for size in weight.shape)
        counts = [f"{groups[kind]:,}" if kind in groups else "-" for kind in ("sparsity", "precision")]
        table.add_row(name, shape, f"{weight.numel():,}", *counts)
    console.print(table)
    for line in _totals(recipe, setup):
        console.print(line, highlight=False, soft_wrap=True)


def _layers(model: nn.Module) -> Iterator[tuple[str, Tensor, dict[str, int]]]:
    """Every weight of two or more dimensions once, with the number of decisions of each kind on it."""
    from paretorch.core.attach.templates import chains_of
    from paretorch.core.attach.weights import relaxed_weights
    from paretorch.core.relaxation import PREFIX

    seen: set[int] = set()
    for name, module in model.named_modules():
        # The decisions of a weight are modules themselves: no layers.
        if any(part == "parametrizations" or part.startswith(PREFIX) for part in name.split(".")):
            continue
        chains = chains_of(module)
        decided = {id(weight): chain.relaxations() for chain, weight in chains}
        seen |= {id(weight.tensor) for weight in relaxed_weights(module)}  # which follow from those in the chains
        weights = [weight for _, weight in chains if weight.ndim > 1]
        weights += [weight for weight in module.parameters(recurse=False) if weight.ndim > 1]
        for weight in weights:
            if id(weight) not in seen:
                seen.add(id(weight))
                yield name, weight, {each.kind: each.decision.numel() for each in decided.get(id(weight), [])}


def _totals(recipe: Recipe, setup: "Setup") -> list[str]:
    weights = list(_layers(setup.model))
    chosen = sum(weight.numel() for _, weight, groups in weights if groups)
    every = _parameters(setup.model, setup.plan)
    steps = setup.task.steps
    tuned = f", then {recipe.finetune} to fine-tune" if recipe.finetune else ""
    lines = [
        f"parameters      {every:,}, of which {chosen:,} are decided on",
        f"steps           {recipe.epochs * steps:,} ({recipe.epochs} epochs of {steps}{tuned})",
        f"device          {setup.device}",
    ]
    return [*lines, *expected_bytes(recipe, setup)]


def _parameters(model: nn.Module, plan: "Plan | None") -> int:
    if plan is None:
        return sum(weight.numel() for weight in model.parameters())
    return sum(weight.numel() for group in plan.param_groups() for weight in group["params"])


_APART = 0.2  # of decisions; estimates of nine ResNet-20 runs by CS and SMOL are then 2 % below to 10 % above the files, of one by LSQ 17 % below


def expected_bytes(recipe: Recipe, setup: "Setup") -> list[str]:
    """The size of the artefact if the network were rounded now, as one that has been trained would be; uses the setup up."""
    from paretorch import deploy
    from paretorch.training.finish import finalize_plan
    from paretorch.training.norms import fold_norms

    _scatter(setup.model)
    if setup.plan is None:
        return [f"expected bytes  {deploy.sizes(setup.model).total:,} (dense)"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndecidedWarning)  # nothing has been searched for yet
        setup.plan.harden()
    reached = setup.plan.metrics()
    small = finalize_plan(setup.plan)
    if recipe.compression.norms is not None:
        fold_norms(small, recipe.compression.norms)
    sizes = deploy.sizes(small)
    share = f"{100 * sizes.total / sizes.dense:.1f} %"
    lines = [f"expected bytes  {sizes.total:,} of {sizes.dense:,} as plain tensors ({share})"]
    if recipe.compression.budget is not None:
        zeros = [f"{100 * reached['sparsity']:.1f} % zeros"] if "sparsity" in reached else []
        bits = [f"{reached['bits']:.2f} bits per weight"] if "bits" in reached else []
        lines.append(f"in the budget   {', '.join(zeros + bits)}")
    return lines


def _scatter(model: nn.Module) -> None:
    """Make what is alike at the start as different as training does.

    Decisions that are all the same would be told apart by their place, and vectors of ones and zeros by one number: both
    cost a file next to nothing. The rivals of SMOL decide nothing of that kind: theirs are steps and numbers of bits.
    """
    from paretorch.core.attach.templates import chains_of
    from paretorch.core.finish.byte_budget import as_trained
    from paretorch.methods.precision.rivals.rival import Quantized

    generator = torch.Generator().manual_seed(0)
    chains = [chain for module in model.modules() for chain, _ in chains_of(module)]
    found = [one for chain in chains for one in chain.relaxations() if one.kind in ("sparsity", "precision")]
    decisions = {id(one.decision): one.decision for one in found if not isinstance(one, Quantized)}
    kept = {id(one.decision) for one in found}
    with torch.no_grad():
        for decision in decisions.values():
            decision.add_(_APART * torch.randn(decision.shape, generator=generator).to(decision))
        rest = [tensor for tensor in (*model.parameters(), *model.buffers()) if id(tensor) not in kept]
        for tensor, likely in zip(rest, as_trained(rest), strict=True):
            tensor.copy_(likely)
