"""The end of a run whose inputs are tokens: as `paretorch.training.finish`, but nothing is counted on an example.

Multiply-adds are those of convolutions and linear layers; of a recurrent network or of attention they would be a part
that reads like the whole.
"""

import json
from typing import TYPE_CHECKING, Any

from torch import nn

from paretorch.training.files import write_atomically
from paretorch.training.finish import summary_of
from paretorch.training.folder import RunFolder
from paretorch.training.task import Task

if TYPE_CHECKING:
    from paretorch.core.plan import Plan


def finish_tokens(
    model: nn.Module, task: Task, plan: "Plan | None", folder: RunFolder, last: dict[str, Any]
) -> dict[str, Any]:
    """Finalize, evaluate once more, write model.pare, report.html and result.json; returns the result."""
    from paretorch import deploy
    from paretorch.report import write_html

    model = plan.finalize() if plan is not None else model
    model.eval()
    metrics = task.evaluate(model)
    deploy.save(model.to("cpu"), folder.artefact, summary=summary_of(metrics))
    report = deploy.report(folder.artefact, latency=False)
    write_html(folder.report, title=folder.path.name, comparison=[], report=report, history=folder.history())
    result: dict[str, Any] = {
        **metrics,
        **{name: last[name] for name in ("sparsity", "bits") if name in last},
        "bytes": report.sizes.total,
        "dense_bytes": report.sizes.dense,
        "bits_on_disk": report.bits_on_disk,
        "epochs": last["epoch"],
    }
    write_atomically(folder.path / "result.json", json.dumps(result, indent=2).encode())
    return result
