"""The end of a run: a plain network again, its artefact, and what it came to."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from paretorch.errors import ArtefactError
from paretorch.training.files import write_atomically
from paretorch.training.folder import RunFolder
from paretorch.training.task import Task

if TYPE_CHECKING:
    from paretorch.core.plan import Plan


def finish(
    model: nn.Module, task: Task, plan: "Plan | None", folder: RunFolder, last: dict[str, Any]
) -> dict[str, Any]:
    """Finalize, evaluate once more, save model.pare and result.json; returns the result.

    The metrics are those of the finalized network after the last epoch, never of the best one.
    """
    from paretorch import deploy

    model = plan.finalize() if plan is not None else model
    model.eval()
    metrics = task.evaluate(model)
    plain = model.to("cpu").to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    sizes = deploy.save(plain, folder.artefact, summary=metrics)
    zeros, weights = _count_zeros(plain)
    decided: dict[str, Any] = {name: last[name] for name in ("sparsity", "bits") if name in last}
    result: dict[str, Any] = {
        **metrics,
        **decided,
        "bytes": sizes.total,
        "dense_bytes": sizes.dense,
        "zeros": zeros,
        "weights": weights,
        "epochs": last["epoch"],
    }
    write_atomically(folder.path / "result.json", json.dumps(result, indent=2).encode())
    return result


def read_result(folder: Path) -> dict[str, Any] | None:
    """What a finished run came to; None while it is not finished."""
    path = folder / "result.json"
    if not path.exists():
        return None
    try:
        result: dict[str, Any] = json.loads(path.read_text())
    except ValueError as error:
        raise ArtefactError(f"{path} is damaged; remove it and run again with --resume.") from error
    return result


def _count_zeros(model: nn.Module) -> tuple[int, int]:
    """Zeros among the entries of matrices and filters, and how many entries there are."""
    weights = [weight for weight in model.parameters() if weight.ndim > 1]
    return sum(int((weight == 0).sum()) for weight in weights), sum(weight.numel() for weight in weights)
