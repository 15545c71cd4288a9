"""The end of a run: a plain network again, its artefact, its report, and what it came to."""

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from paretorch.errors import ArtefactError
from paretorch.support.files import read_json
from paretorch.training.files import write_atomically
from paretorch.training.folder import RunFolder
from paretorch.training.norms import fold_norms
from paretorch.training.progress import headline
from paretorch.training.tasks import ImageTask, Task

if TYPE_CHECKING:
    from paretorch.core.plan import Plan
    from paretorch.deploy.measure.record import Report


def finish(
    model: nn.Module,
    task: Task,
    plan: "Plan | None",
    folder: RunFolder,
    last: dict[str, Any],
    test: Task | None = None,
    norms: str | None = None,
) -> dict[str, Any]:
    """Finalize, evaluate once more, write model.pare, report.html and result.json; returns the result.

    norms: as the recipe has it; batch norms are folded before anything is measured.

    The metrics are those of the finalized network after the last epoch, never of the best one. In a run with a
    validation part they are over that part, as in every row of metrics.jsonl ("evaluated_on" says so), and `test` adds
    those of the test set as final_test_accuracy and so on, which nothing may be chosen by. `soft_accuracy` and
    `hard_accuracy` are those right before and right after rounding. `sparsity` and `bits` are over the weights that were
    decided on, `sparsity_weights` and `bits_weights` of them; `sparsity_of_all`, `bits_of_all` and `bits_on_disk`, which has masks and
    maps, are over all `weights` of the network as it was built, as in the report. `activation_bits` are over the activations decided on;
    `parameters` are the numbers that are stored, those of norms too; `layers` has the sparsity of each, `layer_bits` its
    average bits, `layer_precisions` the number of its weights by their bits, `activation_layers` the bits of each activation;
    `similarities` how alike layers that share were at the end of the search. Of a network that makes images some are drawn,
    into samples.png and the report.
    """
    from paretorch import deploy
    from paretorch.report import report as measure
    from paretorch.report import write_html

    weights = (
        {} if plan is None else {f"{name}_weights": count for name, count in plan.decided().items() if name in last}
    )
    model = finalize_plan(plan) if plan is not None else model
    if norms is not None:
        fold_norms(model, norms)
    model.eval()
    metrics = task.evaluate(model)
    unseen = {} if test is None else {f"final_{name}": value for name, value in test.evaluate(model).items()}
    example = task.example()
    # Of tokens nothing is counted: the multiply-adds of convolutions and linear layers would be a part that reads like
    # the whole of a recurrent network or of attention.
    counted = isinstance(example, torch.Tensor) and example.is_floating_point()
    image = example[:1].float().cpu().contiguous() if counted else None
    plain = model.to("cpu").to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    sizes = deploy.save(plain, folder.artefact, summary=summary_of(metrics))
    # The file of a user's own network cannot say how to build it.
    measured = folder.artefact if getattr(plain, "zoo_name", "") or image is None else plain
    report = replace(measure(measured, example=image, latency=False), sizes=sizes)
    drawn = _draw(plain, task, folder.samples)
    title, history = folder.path.absolute().name, folder.history()
    write_html(folder.report, title=title, comparison=[], report=report, history=history, samples=drawn)
    decided: dict[str, Any] = {name: last[name] for name in ("sparsity", "bits", "activation_bits") if name in last}
    result: dict[str, Any] = {
        **metrics,
        "evaluated_on": "test" if test is None else "validation",
        **unseen,
        **rounding(history),
        **decided,
        **weights,
        "weights": report.built,
        **({} if plan is None else {"sparsity_of_all": report.sparsity, "bits_of_all": report.bits}),
        "parameters": report.parameters,
        "bytes": report.sizes.total,
        "dense_bytes": report.sizes.dense,
        "bits_on_disk": report.bits_on_disk,
        **({} if image is None else {"macs": report.macs, "macs_kept": report.macs_kept}),
        "epochs": last["epoch"],
        **({} if plan is None else _by_layer(report, history)),
    }
    folder.restore()
    write_atomically(folder.path / "result.json", json.dumps(result, indent=2).encode())
    return result


def _by_layer(report: "Report", history: list[dict[str, Any]]) -> dict[str, Any]:
    """What pictures of single layers are drawn from, so that the files of results are enough for them."""
    kept = [row["similarities"] for row in history if "similarities" in row]
    counted = {one.name: one.size.precisions for one in report.layers if one.size.precisions}
    return {
        "layers": {one.name: round(one.sparsity, 6) for one in report.layers},
        "layer_bits": {one.name: round(one.size.bits, 4) for one in report.layers},
        **({"layer_precisions": {name: _by_bits(found) for name, found in counted.items()}} if counted else {}),
        **({"activation_layers": {one.name: one.bits for one in report.activations}} if report.activations else {}),
        **({"similarities": kept[-1]} if kept else {}),
    }


def _by_bits(precisions: Mapping[int, int]) -> dict[str, int]:
    return {str(bits): count for bits, count in sorted(precisions.items())}


def finalize_plan(plan: "Plan") -> nn.Module:
    """The plain network; of one that shares, with its templates once: what `finalize` writes out is every layer's weight."""
    from paretorch.methods.sharing import fold

    if any(method.kind == "sharing" for method in plan.methods()):
        return fold(plan.model)
    return plan.finalize()


def _draw(model: nn.Module, task: Task, path: Path) -> bytes | None:
    if not isinstance(task, ImageTask):
        return None
    from paretorch.report.markup import png

    picture = png(task.draw(model))
    write_atomically(path, picture)
    return picture


def rounding(history: list[dict[str, Any]]) -> dict[str, float]:
    """What rounding did: the headline metric with soft decisions and with rounded ones, neither of them fine-tuned."""
    for before, row in pairwise(history):
        if row["phase"] == "harden":
            name = headline(row)
            return {
                f"{when}_{name.removeprefix('test_')}": one[name] for when, one in (("soft", before), ("hard", row))
            }
    return {}


def summary_of(metrics: dict[str, float]) -> dict[str, float]:
    """What goes into the artefact beside the weights: every byte of it counts against a budget."""
    return {"accuracy": round(metrics["test_accuracy"], 4)} if "test_accuracy" in metrics else {}


def read_result(folder: Path) -> dict[str, Any] | None:
    """What a finished run came to; None while it is not finished."""
    path = folder / "result.json"
    if not path.exists():
        return None
    try:
        result = dict(read_json(path))
        if not result.keys() >= {"epochs", "bytes", "dense_bytes"}:
            raise ValueError
    except (OSError, ValueError, TypeError) as error:
        raise ArtefactError(f"{path} is damaged; remove it and run again with --resume") from error
    return result
