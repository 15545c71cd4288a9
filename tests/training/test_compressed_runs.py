"""Runs with decisions: searched, rounded, fine-tuned, and resumed in every phase."""

import contextlib

import pytest
import torch

from paretorch.errors import ConfigError
from paretorch.training.recipe_values import recipe_from

from .blobs import Make, rows_of, state_of

_RECIPE = recipe_from(
    {
        "epochs": 3,
        "finetune": 2,
        "data.batch": 4,
        "optimizer.lr": 0.05,
        "schedule.finetune_lr": 0.02,
        "compression.sparsity": 0.5,
        "compression.bits": 1.5,
    }
)


def test_the_phases_follow_each_other(make: Make) -> None:
    trainer = make(_RECIPE)
    last = trainer.run()
    rows = trainer.folder.history()
    assert [row["phase"] for row in rows] == ["search"] * 3 + ["harden"] + ["finetune"] * 2
    assert [row["epoch"] for row in rows] == [1, 2, 3, 3, 4, 5]
    assert last["sparsity"] == pytest.approx(0.5, abs=0.03)
    assert last["bits"] == pytest.approx(1.5, abs=0.1)
    assert rows[-2]["lr"] < 0.02 < rows[0]["lr"]


def test_decisions_stay_fixed_while_fine_tuning(make: Make) -> None:
    trainer = make(_RECIPE)
    trainer.run()
    assert trainer.plan is not None
    assert trainer.plan.is_hard
    rows = trainer.folder.history()
    assert len({row["sparsity"] for row in rows[3:]}) == 1


@pytest.mark.parametrize("stop", [1, 6, 11, 12, 13, 19])
@pytest.mark.parametrize("every", [0, 1])
def test_a_run_stopped_in_any_phase_continues_bit_for_bit(make: Make, stop: int, every: int) -> None:
    whole = make(_RECIPE, name="whole")
    whole.run()
    broken = make(_RECIPE, name="broken", steps=every)
    broken.task.fail_at = stop  # type: ignore[attr-defined]
    with contextlib.suppress(KeyboardInterrupt):
        broken.run()
    assert len(broken.folder.history()) < len(whole.folder.history())
    continued = make(_RECIPE, name="broken", resume=True)
    continued.run(resume=True)
    expected, found = state_of(whole), state_of(continued)
    assert all(torch.equal(expected[key], found[key]) for key in expected)
    assert rows_of(whole) == rows_of(continued)


def test_without_fine_tuning_the_run_ends_rounded(make: Make) -> None:
    trainer = make(recipe_from({"epochs": 2, "data.batch": 4, "optimizer.lr": 0.05, "compression.sparsity": 0.5}))
    assert trainer.run()["phase"] == "harden"


def test_options_go_to_the_methods_and_wrong_ones_are_named(make: Make) -> None:
    trainer = make(
        recipe_from(
            {
                "epochs": 1,
                "data.batch": 4,
                "compression.sparsity": 0.5,
                "compression.sparsity_options": {"group": "channel", "exclude": "4"},
            }
        )
    )
    assert trainer.plan is not None
    (method,) = trainer.plan.methods()
    assert (method.group, method.exclude) == ("channel", "4")
    with pytest.raises(ConfigError, match=r"sparsity_options.*colour"):
        make(
            recipe_from(
                {
                    "epochs": 1,
                    "data.batch": 4,
                    "compression.sparsity": 0.5,
                    "compression.sparsity_options": {"colour": 1},
                }
            ),
            name="other",
        )
