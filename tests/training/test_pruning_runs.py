"""Runs by every pruning method: chosen by name, on target, resumed at any step, ended as the method asks for."""

import contextlib
from typing import Any

import pytest
from torch import nn

from paretorch.errors import ConfigError
from paretorch.methods.registry import entries
from paretorch.methods.sparsity.rivals import AMC
from paretorch.training import Recipe, compression
from paretorch.training.recipe import PRUNING
from paretorch.training.recipe_values import changed, recipe_from

from .blobs import Blobs, Make, ends_where_it_does, rows_of

_OPTIONS: dict[str, dict[str, Any]] = {
    "gmp": {"every": 1},
    "amc": {"episodes": 4, "warmup": 2},
    "stochastic": {"lr": 1},
}


def _recipe(name: str, **changes: Any) -> Recipe:
    values: dict[str, Any] = {"epochs": 3, "finetune": 1, "batch": 4, "lr": 0.05, "sparsity": 0.5, "validation": 4}
    return recipe_from(
        {**values | changes, "compression.pruning": name, "compression.sparsity_options": _OPTIONS.get(name, {})}
    )


def test_every_name_has_a_method() -> None:
    assert tuple(entries("sparsity")) == PRUNING


@pytest.mark.parametrize("name", PRUNING)
def test_every_method_goes_through_the_loop_on_target_and_resumes(make: Make, name: str) -> None:
    whole = make(_recipe(name), name="whole")
    last = whole.run()
    assert [row["phase"] for row in whole.folder.history()] == ["search"] * 3 + ["harden", "finetune"]
    assert last["sparsity"] == pytest.approx(0.5, abs=0.03)
    assert whole.plan is not None
    assert type(whole.plan.methods()[0]) is entries("sparsity")[name].method

    ends_where_it_does(whole, make, _recipe(name))


@pytest.mark.parametrize("name", ["l0", "stochastic", "amc"])
def test_a_kill_before_the_rounding_changes_nothing(make: Make, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = make(_recipe(name), name="whole")
    whole.run()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr("paretorch.training.fit.harden", killed)
        make(_recipe(name), name="broken").run()
    continued = make(_recipe(name), name="broken", resume=True)
    continued.run(resume=True)
    assert rows_of(continued) == rows_of(whole)


@pytest.mark.parametrize("name", ["l0", "stochastic"])
def test_the_best_of_several_drawn_masks_is_kept(make: Make, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scores: list[float] = []
    judge = compression._judge

    def watched(task: Any, epoch: int) -> Any:
        score = judge(task, epoch)

        def told(model: nn.Module) -> float:
            assert not model.training
            scores.append(score(model))
            return scores[-1]

        return told

    monkeypatch.setattr(compression, "_judge", watched)
    trainer = make(_recipe(name, finetune=0))
    trainer.run()
    assert len(scores) == 8
    assert judge(Blobs(), 3)(trainer.model.eval()) == pytest.approx(max(scores))


def test_drawn_masks_of_other_recipes_are_drawn_once(make: Make) -> None:
    """A ticket search hands its own plan to the loop, with a recipe that compresses nothing."""
    trainer = make(_recipe("stochastic", finetune=0))
    trainer.recipe = changed(trainer.recipe, {"compression.pruning": None})
    trainer.run()
    assert trainer.task.taken == 12  # type: ignore[attr-defined]


def test_amc_is_judged_by_evaluation(make: Make) -> None:
    trainer = make(_recipe("amc"))
    asked: list[bool] = []
    evaluate = trainer.task.evaluate

    def watched(model: nn.Module) -> dict[str, float]:
        asked.append(trainer.plan is not None and trainer.plan.is_hard)
        return evaluate(model)

    trainer.task.evaluate = watched  # type: ignore[method-assign]
    trainer.run()
    assert asked == [False] * 3 + [True] * (4 + 2)


@pytest.mark.parametrize("name", ["mp", "amc"])
def test_a_trained_network_is_pruned_right_away(make: Make, name: str) -> None:
    recipe = _recipe(name, epochs=0, finetune=2, start="dense.pare")
    trainer = make(recipe)
    trainer.run()
    rows = trainer.folder.history()
    assert [(row["phase"], row["epoch"]) for row in rows] == [
        ("start", 0),
        ("harden", 0),
        ("finetune", 1),
        ("finetune", 2),
    ]
    assert rows[1]["sparsity"] == pytest.approx(0.5, abs=0.03)
    assert make(recipe, resume=True).run(resume=True) == rows[-1]


def test_what_cannot_be_meant_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=f"choose one of {', '.join(PRUNING)}"):
        recipe_from({"compression.pruning": "gpm", "compression.sparsity": 0.5})
    for changes in ({"start": None}, {"finetune": 0}, {"pruning": "cs"}):
        with pytest.raises(ConfigError, match="epochs must be at least 1"):
            changed(
                recipe_from({"compression.pruning": "mp", "compression.sparsity": 0.5, "start": "a", "finetune": 1}),
                {"epochs": 0, **changes},
            )


def test_options_go_to_the_method_that_is_named(make: Make) -> None:
    trainer = make(
        recipe_from(
            {
                "epochs": 1,
                "data.batch": 4,
                "compression.sparsity": 0.5,
                "compression.pruning": "amc",
                "data.validation": 4,
                "compression.sparsity_options": {"most": 0.75},
            }
        )
    )
    assert trainer.plan is not None
    (method,) = trainer.plan.methods()
    assert method == AMC(target=0.5, most=0.75, exclude=())
    with pytest.raises(ConfigError, match=r"sparsity_options.*GradualMagnitude.*init"):
        make(
            recipe_from(
                {
                    "epochs": 1,
                    "data.batch": 4,
                    "compression.sparsity": 0.5,
                    "compression.pruning": "gmp",
                    "compression.sparsity_options": {"init": 1},
                }
            ),
            name="other",
        )


def test_without_a_sparsity_the_method_s_own_options_decide(make: Make) -> None:
    options = {"init": -0.1, "penalty": 1e-8}
    trainer = make(
        recipe_from(
            {"epochs": 3, "data.batch": 4, "compression.pruning": "cs", "compression.sparsity_options": options}
        )
    )
    assert trainer.run()["phase"] == "harden"
    assert trainer.plan is not None
    (method,) = trainer.plan.methods()
    assert (method.target, method.init) == (None, -0.1)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="needs a target"):
        make(recipe_from({"epochs": 1, "data.batch": 4, "compression.pruning": "gmp"}), name="other")
