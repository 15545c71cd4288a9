"""Runs from before recipes were nested, or had a field, are continued, with that field at its default and at no other value."""

import contextlib
import json
from typing import Any

import pytest
import torch

from paretorch.errors import ConfigError
from paretorch.training import RunFolder
from paretorch.training.recipe_values import PLACES, by_place, changed, recipe_from

from .blobs import Make


def _flatten(folder: RunFolder) -> dict[str, Any]:
    """The recipe of a run under the flat names of 0.1.0."""
    places = by_place(json.loads(folder.config.read_text())["recipe"])
    return {name: places[place] for name, place in PLACES.items()}


def _store(folder: RunFolder, recipe: dict[str, Any]) -> None:
    """Put a recipe in the place of the one that the run has kept, in its configuration and in its checkpoint."""
    content = json.loads(folder.config.read_text())
    folder.config.write_text(json.dumps({**content, "recipe": recipe}))
    stored = torch.load(folder.checkpoint, weights_only=True)
    torch.save({**stored, "recipe": recipe}, folder.checkpoint)


def test_a_run_with_a_flat_recipe_ends_as_it_would_have(make: Make) -> None:
    recipe = recipe_from({"epochs": 2, "finetune": 1, "data.batch": 4, "optimizer.lr": 0.05, "compression.bits": 2.0})
    whole = make(recipe, name="whole")
    end = whole.run()
    first = make(recipe, name="broken")
    first.task.fail_at = 5  # type: ignore[attr-defined]
    with contextlib.suppress(KeyboardInterrupt):
        first.run()
    _store(first.folder, _flatten(first.folder))
    continued = make(recipe, name="broken", resume=True).run(resume=True)
    assert {**continued, "seconds": 0} == {**end, "seconds": 0}
    with pytest.raises(ConfigError, match=r"optimizer.lr \(there 0.05, now 0.1\)"):
        make(changed(recipe, {"optimizer.lr": 0.1}), name="broken", resume=True)


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
    recipe = recipe_from({"epochs": 2, "finetune": 1, "data.batch": 4, "optimizer.lr": 0.05, **target})
    first = make(recipe)
    first.task.fail_at = 5  # type: ignore[attr-defined]
    with contextlib.suppress(KeyboardInterrupt):
        first.run()
    stored = _flatten(first.folder)
    del stored[field]
    _store(first.folder, stored)
    assert recipe_from(stored) == recipe
    assert make(recipe, resume=True).run(resume=True)["phase"] == "finetune"
    with pytest.raises(ConfigError, match=rf"{field} \(there None, now "):
        make(changed(recipe, {field: other}), resume=True)
