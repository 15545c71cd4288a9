"""The tasks on a GPU: a replayed step with a carried state agrees with an eager one; shapes that differ run eagerly."""

from pathlib import Path
from typing import Any

import pytest
import torch

from paretorch.training import Runtime, train
from paretorch.training.recipe_values import recipe_from

from .test_tasks_promises import RECIPES, root

__all__ = ["root"]  # the fixture

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def _run(data: str, root: Path, out: Path, *, fast: bool, resume: bool = False, **others: Any) -> dict[str, Any]:
    recipe = recipe_from(
        {
            "data.name": data,
            "epochs": 4,
            "optimizer.name": "adam",
            "optimizer.lr": 0.01,
            "optimizer.clip_norm": 0.5,
            **RECIPES[data],
            **others,
        }
    )
    runtime = Runtime(root=str(root), device="cuda", graph=fast, compile=fast, checkpoint_steps=3, progress="quiet")
    return train(recipe, out, runtime, resume=resume)


@pytest.mark.parametrize("data", ["ptb", "ptb-char", "shortest-paths"])
def test_replayed_steps_agree_with_eager_ones(root: Path, tmp_path: Path, data: str) -> None:
    still = {f"dropout_{name}": 0.0 for name in ("input", "hidden", "output", "weight")}
    options = RECIPES[data]["network_options"] | (still if data.startswith("ptb") else {})
    eager, fast = (
        _run(data, root, tmp_path / str(fast), fast=fast, dtype="fp32", network_options=options)
        for fast in (False, True)
    )
    assert fast["test_loss"] == pytest.approx(eager["test_loss"], rel=0.02)


@pytest.mark.parametrize("data", RECIPES)
@pytest.mark.parametrize("targets", [{}, {"sparsity": 0.5, "bits": 2.0, "finetune": 1}])
def test_a_run_in_bf16_ends_and_resumes(root: Path, tmp_path: Path, data: str, targets: dict[str, Any]) -> None:
    if data == "multi30k":
        pytest.importorskip("tokenizers")
    result = _run(data, root, tmp_path, fast=True, **targets)
    (tmp_path / "result.json").unlink()
    again = _run(data, root, tmp_path, fast=True, resume=True, **targets)
    assert again["test_loss"] == pytest.approx(result["test_loss"], rel=1e-3)
