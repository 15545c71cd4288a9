"""Runs from before a recipe had a field are continued, with that field at its default and at no other value."""

import contextlib
import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from paretorch.errors import ConfigError
from paretorch.training import Recipe
from paretorch.training.recipe import recipe_from

from .blobs import Make


@pytest.mark.parametrize(
    ("target", "field", "other"),
    [
        ({"sparsity": 0.5}, "pruning", "gmp"),
        ({"bits": 2.0}, "quantization", "lsq"),
        ({"sparsity": 0.5}, "activation_bits", 4.0),
        ({"sparsity": 0.5}, "finetune_milestones", (1.0,)),
        ({"sparsity": 0.5}, "norms", "fp32"),
    ],
)
def test_runs_from_before_the_field_are_continued(make: Make, target: dict[str, Any], field: str, other: Any) -> None:
    recipe = Recipe(epochs=2, finetune=1, batch=4, lr=0.05, **target)
    first = make(recipe)
    first.task.fail_at = 5  # type: ignore[attr-defined]
    with contextlib.suppress(KeyboardInterrupt):
        first.run()
    content = json.loads(first.folder.config.read_text())
    del content["recipe"][field]
    first.folder.config.write_text(json.dumps(content))
    stored = torch.load(first.folder.checkpoint, weights_only=True)
    del stored["recipe"][field]
    torch.save(stored, first.folder.checkpoint)
    assert recipe_from(content["recipe"]) == recipe
    assert make(recipe, resume=True).run(resume=True)["phase"] == "finetune"
    with pytest.raises(ConfigError, match=rf"{field} \(there None, now "):
        make(replace(recipe, **{field: other}), resume=True)
