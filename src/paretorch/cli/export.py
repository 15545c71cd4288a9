"""`pare export`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paretorch.cli.finished import DEFAULT, FLAGS, HELP, Finished, find_finished
from paretorch.cli.options import Number, Text, Whole, go_with, integers
from paretorch.cli.recipe_flags import RecipeFields, recipe_flags
from paretorch.errors import ConfigError
from paretorch.training.tasks.choose_disk import has_own_task

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

    from paretorch.support.inputs import Example
    from paretorch.zoo.data import Images

_BATCH = 500
_IMAGES = 512


@recipe_flags(*FLAGS, help=HELP, default={**DEFAULT, "data": "with --int8, the run's"})
def export(
    path: Annotated[
        Path, typer.Argument(help="A run folder, an artefact such as model.pare, or weights with --network.")
    ],
    out: Annotated[Path | None, typer.Argument(help="The ONNX file.", show_default="beside the artefact")] = None,
    *,
    flags: RecipeFields,
    weights: Annotated[
        str, typer.Option(help="packed (few bits where they suffice), qdq (for other compilers) or fp32.")
    ] = "packed",
    runtime: Annotated[
        Text,
        typer.Option(
            help="onnxruntime-int4, onnxruntime-int8, openvino, executorch, torchao-int4, gguf:Q8_0, gguf:Q4_0 or gguf:TQ2_0."
        ),
    ] = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="Integer weights and activations, ranges from training images.")
    ] = False,
    images: Annotated[
        Whole, typer.Option(min=1, help="Training images that --int8 looks at.", show_default=str(_IMAGES))
    ] = None,
    percentile: Annotated[
        Number, typer.Option(help="Cut the ranges of --int8 here, such as 99.99.", show_default="no cut")
    ] = None,
    shape: Annotated[
        Text, typer.Option(help="Shape of one input, such as 3,32,32.", show_default="that of the data")
    ] = None,
    root: Annotated[Path | None, typer.Option(help="Folder of the data sets.")] = None,
) -> None:
    """Write a network as a file of a runtime (ONNX, if none is named), run it once, and print its bytes and its accuracy.

    Examples:

        pare export runs/mine

        pare export model.pare model.onnx --shape 3,32,32

        pare export runs/mine small.onnx --int8 --root data

        pare export model.pare --runtime gguf:Q4_0
    """
    from paretorch import deploy, zoo
    from paretorch.deploy.runtimes import find_runtime

    found = find_finished(path, flags, root)
    artefact, data = found.path, flags.get("data.name")
    if not artefact.exists():
        raise ConfigError(f"There is no artefact {artefact}")
    if int8 and not found.data:
        raise ConfigError("--int8 needs images to look at: --data cifar10")
    go_with("--int8", int8, {"--percentile": percentile, "--images": images})
    known_runtime = None if runtime is None else find_runtime(runtime)
    if runtime is not None and (int8 or weights != "packed"):
        raise ConfigError("--runtime says how weights are stored: leave out --int8 and --weights")
    is_onnx = known_runtime is None or known_runtime.kind == "onnx"
    target = out or artefact.with_suffix(".onnx" if known_runtime is None else known_runtime.suffix)
    if target.resolve() == artefact.resolve():
        raise ConfigError(f"{target} is the artefact itself, which the ONNX file would replace: give another name")
    if known_runtime is not None and not known_runtime.is_traced:
        _refuse_inputs(data, shape)
        deploy.export(found.network(), target, runtime=known_runtime.name)
        typer.echo(_sizes(target, artefact))
        return
    name = data or (found.data if int8 else None)
    if name and shape:
        raise ConfigError(f"The inputs are those of {name}, whose shape is known: leave out --shape")
    options: dict[str, Any] = {"weights": weights} if runtime is None else {"runtime": runtime}
    own = bool(name) and has_own_task(str(name))
    known = zoo.data.load(name, root) if name and not own else None
    example = _example(known, shape, found)
    model = found.network()
    if known_runtime is not None and not is_onnx:
        deploy.export(model, target, runtime=known_runtime.name, example=example)
        typer.echo(_sizes(target, artefact))
        return
    if int8:
        looked_at = found.inputs(images or _IMAGES) if known is None else _calibration(known, images or _IMAGES)
        options |= {"calibrate": looked_at, "percentile": percentile}
    deploy.export_onnx(model, example, target, **options)
    typer.echo(_sizes(target, artefact))
    typer.echo(_describe(target))
    if name:
        typer.echo(_own_accuracies(found, model, target) if known is None else _accuracies(known, model, target))


def _sizes(target: Path, artefact: Path) -> str:
    return f"{target}: {target.stat().st_size:,} bytes ({artefact.name}: {artefact.stat().st_size:,})"


def _refuse_inputs(data: str | None, shape: str | None) -> None:
    """Such a file has weights and no graph: nothing is run."""
    for option, value in (("--data", data), ("--shape", shape)):
        if value is not None:
            raise ConfigError(f"{option} is for files that are run: leave it out for one of weights alone")


def _example(known: "Images | None", shape: str | None, found: Finished) -> "Example":
    """Two inputs: of the images where there are any, else zeros of the shape that was given or that the run has."""
    if known is not None:
        return _normalised(known, known.test[0][:2])
    example = found.example(tuple(integers(shape, "--shape")) if shape else None, 2)
    if example is None:
        raise ConfigError("The shape of an input is not known: --shape 3,32,32")
    return example


def _own_accuracies(found: Finished, model: "Module", path: Path) -> str:
    """What the file and the network it was written from come to on a user's own data."""
    from paretorch.deploy.rivals import OnnxNetwork
    from paretorch.training.progress import format_metric, headline

    ours, theirs = (found.task.evaluate(one) for one in (model, OnnxNetwork(path)))
    name = headline(ours)
    values = [format_metric(name, one[name]) for one in (theirs, ours)]
    return f"{name.replace('_', ' ')} on {found.data}: {values[0]} in onnxruntime, {values[1]} in torch"


def _calibration(found: "Images", count: int) -> list["Tensor"]:
    """So many training images from all over the set, which may be sorted, in batches."""
    every = found.train[0]
    return list(_normalised(found, every[:: max(1, len(every) // count)][:count]).split(_BATCH))


def _accuracies(found: "Images", model: "Module", path: Path) -> str:
    """The accuracy of the file beside that of the network it was written from."""
    from paretorch.deploy.rivals import OnnxNetwork
    from paretorch.report.measure import measure_accuracy

    inputs = _normalised(found, found.test[0])
    batches = list(zip(inputs.split(_BATCH), found.test[1].split(_BATCH), strict=True))
    ours, theirs = (measure_accuracy(one, batches) for one in (model, OnnxNetwork(path)))
    return f"accuracy on {len(inputs):,} test images: {theirs:.2%} in onnxruntime, {ours:.2%} in torch"


def _normalised(found: "Images", images: "Tensor") -> "Tensor":
    import torch

    from paretorch.zoo.data import normalise

    return normalise(images, found.mean, found.std, torch.float32)


def _describe(path: Path) -> str:
    """What the file says of its weights."""
    import onnx

    return "; ".join(entry.value for entry in onnx.load(path).metadata_props if entry.key == "paretorch")
