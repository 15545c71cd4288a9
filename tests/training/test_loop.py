"""The loop: it learns, repeats, stops and continues."""

import contextlib
import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paretorch.errors import ArtefactError, ConfigError, DivergenceError
from paretorch.training import Recipe, RunFolder, Runtime, Trainer
from paretorch.training.recipe_values import recipe_from

from .blobs import Blobs, Make, rows_of, small_model, state_of


def test_it_learns_and_tells(make: Make) -> None:
    trainer = make(recipe_from({"epochs": 8, "data.batch": 4, "optimizer.lr": 0.05}))
    last = trainer.run()
    rows = trainer.folder.history()
    assert last["test_accuracy"] == 1.0
    assert [row["epoch"] for row in rows] == list(range(1, 9))
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert rows[-1]["step"] == 32


def test_a_seed_repeats_the_run_and_another_does_not(make: Make) -> None:
    runs = [
        make(recipe_from({"epochs": 2, "data.batch": 4, "seed": seed}), name=name)
        for seed, name in ((3, "a"), (3, "b"), (4, "c"))
    ]
    for run in runs:
        run.run()
    first, same, other = (state_of(run) for run in runs)
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert rows_of(runs[0]) == rows_of(runs[1])
    assert not torch.equal(first["0.weight"], other["0.weight"])


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stops=st.lists(st.integers(0, 11), min_size=1, max_size=3), every=st.integers(0, 3))
def test_interrupted_runs_end_where_uninterrupted_ones_do(
    make: Make, tmp_path_factory: pytest.TempPathFactory, optimizer: str, stops: list[int], every: int
) -> None:
    recipe = recipe_from(
        {"epochs": 3, "data.batch": 4, "optimizer.lr": 0.05, "optimizer.name": optimizer, "schedule.name": "onecycle"}
    )
    name = tmp_path_factory.mktemp("runs")
    whole = make(recipe, name=str(name / "whole"))
    whole.run()
    for stop in stops:
        broken = make(recipe, name=str(name / "broken"), resume=True, steps=every)
        broken.task.fail_at = stop  # type: ignore[attr-defined]
        with contextlib.suppress(KeyboardInterrupt):
            broken.run(resume=True)
    continued = make(recipe, name=str(name / "broken"), resume=True)
    continued.run(resume=True)
    expected, found = state_of(whole), state_of(continued)
    assert all(torch.equal(expected[key], found[key]) for key in expected)
    assert rows_of(whole) == rows_of(continued)


def test_resuming_a_finished_run_trains_no_further(make: Make) -> None:
    first = make()
    last = first.run()
    again = make(resume=True)
    assert again.run(resume=True) == last
    assert again.task.taken == 0  # type: ignore[attr-defined]


def test_resuming_with_another_recipe_names_the_difference(make: Make) -> None:
    make(recipe_from({"epochs": 1, "data.batch": 4})).run()
    with pytest.raises(ConfigError, match=r"lr \(there 0.1, now 0.2\)"):
        make(recipe_from({"epochs": 1, "data.batch": 4, "optimizer.lr": 0.2}), resume=True)


@pytest.mark.parametrize(("stop", "steps"), [(5, 3), (5, 5), (3, 2)])
def test_resuming_with_other_data_is_refused(make: Make, stop: int, steps: int) -> None:
    """Stopped in the second epoch or in the first, and then epochs are shorter or longer."""
    first = make(steps=1)
    first.task.fail_at = stop  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        first.run()
    again = make(resume=True)
    again.task.steps = steps
    with pytest.raises(ArtefactError, match=f"other data: an epoch has {steps} steps now"):
        again.run(resume=True)


def test_a_folder_with_a_run_is_not_overwritten(make: Make) -> None:
    make().run()
    with pytest.raises(ConfigError, match="--resume"):
        make()


def test_nan_stops_with_step_and_advice_and_keeps_the_checkpoint(make: Make) -> None:
    trainer = make(recipe_from({"epochs": 3, "data.batch": 4, "optimizer.lr": 0.05}))
    trainer.task.poison_at = 6  # type: ignore[attr-defined]
    with pytest.raises(
        DivergenceError, match=r"loss is nan at step 6 \(epoch 2\).*lower learning rate.*last good state"
    ):
        trainer.run()
    continued = make(recipe_from({"epochs": 3, "data.batch": 4, "optimizer.lr": 0.05}), resume=True)
    assert math.isfinite(continued.run(resume=True)["loss"])


def test_divergence_is_found_before_it_is_nan(make: Make) -> None:
    with pytest.raises(DivergenceError, match="at step"):
        make(recipe_from({"epochs": 20, "data.batch": 4, "optimizer.lr": 1e12, "schedule.name": "constant"})).run()


def test_the_learning_rate_follows_the_schedule_into_fine_tuning(make: Make) -> None:
    rates = {"lr": 0.4, "schedule": "steps", "milestones": (1, 2.5), "factor": 0.5}
    later = {"finetune_lr": 0.3, "finetune_schedule": "steps", "finetune_milestones": (1,)}
    trainer = make(
        recipe_from({"epochs": 3, "finetune": 2, "compression.sparsity": 0.5, "data.batch": 4, **rates, **later})
    )
    trainer.run()
    found = [row["lr"] for row in trainer.folder.history() if "lr" in row]
    assert found == pytest.approx([0.4, 0.2, 0.1, 0.3, 0.15])


def test_one_schedule_may_go_through_fine_tuning(make: Make) -> None:
    trainer = make(
        recipe_from(
            {
                "epochs": 3,
                "finetune": 2,
                "compression.sparsity": 0.5,
                "data.batch": 4,
                "optimizer.lr": 0.5,
                "schedule.name": "steps",
                "schedule.milestones": (1, 4),
                "schedule.finetune_name": "through",
            }
        )
    )
    trainer.run()
    found = [row["lr"] for row in trainer.folder.history() if "lr" in row]
    assert found == pytest.approx([0.5, 0.05, 0.05, 0.05, 0.005])


def test_the_run_folder_says_what_was_run(make: Make) -> None:
    trainer = make(recipe_from({"epochs": 1, "data.batch": 4, "seed": 7}))
    trainer.run()
    config = json.loads(trainer.folder.config.read_text())
    assert config["recipe"]["seed"] == 7
    assert config["environment"]["torch"] == torch.__version__
    assert {"command", "hardware", "device"} <= set(config["environment"])


@pytest.mark.parametrize(
    ("epochs", "wanted", "compiles"),
    [(7_499, None, False), (7_500, None, True), (1, True, True), (10_000, False, False)],
)
def test_runs_compile_where_it_pays(
    epochs: int, wanted: bool | None, compiles: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four steps an epoch: 30,000 steps are 7,500 epochs."""
    told: list[bool] = []
    monkeypatch.setattr("paretorch.training.fit.Stepper", lambda *_, compile, **__: told.append(compile))
    for device in ("cpu", "cuda"):
        recipe = Recipe(epochs=epochs)
        folder = RunFolder(tmp_path / device, recipe, resume=False)
        runtime = Runtime(compile=wanted, graph=False)
        Trainer(small_model(), Blobs(), recipe, folder, runtime=runtime, device=torch.device(device))
    assert told == [False, compiles]
