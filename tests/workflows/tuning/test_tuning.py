"""The grid, gradientless descent, and what tuning costs on tables whose answer is known."""

from __future__ import annotations

import sys

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paretorch.errors import ConfigError, MissingExtraError
from paretorch.workflows import tuning
from paretorch.workflows.tuning.samplers import GradientlessDescent

optuna.logging.set_verbosity(optuna.logging.WARNING)


def separable(noise: float = 0.0) -> np.ndarray:
    """A table like AvaGrad's: the best α does not depend on ε."""
    i, j = np.indices((21, 21))
    return 5 + 0.4 * np.abs(i - 13) + 0.1 * np.abs(j - 4) + noise * np.random.default_rng(0).random((21, 21))


def coupled() -> np.ndarray:
    """A table like Adam's: a narrow valley along α ∝ ε."""
    i, j = np.indices((21, 21))
    return 5 + 1.5 * np.abs(i - np.maximum(j, 6)) + 0.1 * np.abs(j - 17)


def test_the_grid_of_the_thesis() -> None:
    alphas, epsilons = tuning.alpha_grid(), tuning.eps_grid()
    assert len(alphas) == len(epsilons) == 21
    assert alphas[:3] == [5e-7, 1e-6, 5e-6]
    assert alphas[-1] == 5000
    assert epsilons[:3] == [1e-8, 2e-8, 1e-7]
    assert epsilons[-2:] == [20, 100]
    np.testing.assert_allclose(tuning.eps_grid("AdaBelief"), np.array(epsilons) * 1e-8)
    assert alphas == sorted(alphas)
    assert epsilons == sorted(epsilons)


def test_separability() -> None:
    assert set(tuning.best_alpha_per_eps(separable())) == {13}
    assert tuning.separability(separable()) == pytest.approx(0)
    assert len(set(tuning.best_alpha_per_eps(coupled()))) > 10
    assert tuning.separability(coupled()) > 1
    diverged = separable()
    diverged[15:] = np.nan
    assert set(tuning.best_alpha_per_eps(diverged)) == {13}
    with pytest.raises(ConfigError, match="two-dimensional"):
        tuning.separability([1.0, 2.0])


def test_trials_to_reach() -> None:
    gaps = [[3.0, 1.0, 0.5, 0.5], [2.0, 2.0, 2.0, 2.0]]
    assert tuning.trials_to_reach(gaps, 0.5).tolist() == [3.0, np.inf]


@settings(max_examples=50, deadline=None)
@given(
    trial=st.integers(1, 200),
    centre=st.lists(st.floats(0, 1), min_size=1, max_size=4),
    coordinate=st.booleans(),
    seed=st.integers(0, 100),
)
def test_proposals_stay_in_the_ball_and_on_the_line(trial, centre, coordinate, seed) -> None:
    descent = GradientlessDescent(coordinate=coordinate)
    point = descent.propose(trial, np.array(centre), np.random.default_rng(seed))
    radius = descent.radii[(trial - 1) % len(descent.radii)]
    moved = point - centre
    assert ((point >= 0) & (point <= 1)).all()
    assert np.linalg.norm(moved) <= radius + 1e-12
    if coordinate:
        assert np.count_nonzero(moved) <= 1


def test_an_exhausted_line_gives_way_to_the_next_and_then_to_the_plane() -> None:
    descent, rng, centre = GradientlessDescent(coordinate=True), np.random.default_rng(0), np.full(2, 0.5)
    moved = [descent.propose(1, centre, rng, wider) - centre for wider in range(5)]
    assert [tuple(np.flatnonzero(move)) for move in moved] == [(0,), (0,), (1,), (0, 1), (0, 1)]


def test_radii() -> None:
    assert GradientlessDescent().radii == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32]
    with pytest.raises(ConfigError, match="Radii"):
        GradientlessDescent(widest=0.1, narrowest=0.2)


@pytest.mark.parametrize("method", ["gld", "cgld", "tpe", "cmaes", "random"])
def test_curves_fall_and_repeat(method) -> None:
    first = tuning.suboptimality(separable(), method, trials=25, repetitions=2, seed=1)
    assert first.shape == (2, 25)
    assert (np.diff(first, axis=1) <= 0).all()
    assert (first >= 0).all()
    assert np.array_equal(first, tuning.suboptimality(separable(), method, trials=25, repetitions=2, seed=1))


def test_separable_tables_are_cheaper_and_descent_beats_chance() -> None:
    cost = {
        (kind, method): np.minimum(tuning.trials_to_reach(tuning.suboptimality(table, method, 60, 15), 0.5), 60).mean()
        for kind, table in (("separable", separable()), ("coupled", coupled()))
        for method in ("cgld", "random")
    }
    assert cost["separable", "cgld"] < cost["separable", "random"]
    assert cost["separable", "cgld"] < cost["coupled", "cgld"]


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
@pytest.mark.parametrize("name", ["gld", "cgld"])
def test_in_a_study_with_every_kind_of_parameter(direction, name) -> None:
    sign = 1 if direction == "minimize" else -1

    def objective(trial) -> float:
        lr = trial.suggest_float("lr", 1e-6, 1e2, log=True)
        eps = trial.suggest_categorical("eps", [1e-8, 1e-6, 1e-4, 1e-2, 1.0])
        width = trial.suggest_int("width", 8, 64, step=8)
        momentum = trial.suggest_float("momentum", 0.0, 1.0, step=0.1)
        trial.suggest_int("fixed", 3, 3)
        assert width % 8 == 0
        if lr > 50:
            raise optuna.TrialPruned  # diverged
        return sign * (abs(np.log10(lr) + 1) + abs(np.log10(eps) + 4) + abs(width - 32) / 16 + abs(momentum - 0.9))

    study = optuna.create_study(direction=direction, sampler=tuning.sampler(name, seed=0))
    study.optimize(objective, n_trials=80)
    assert sign * study.best_value < (1.2 if name == "cgld" else 2.5)
    assert len({tuple(t.params.values()) for t in study.trials}) > 70


def test_two_workers_share_a_storage(tmp_path) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    optuna.create_study(study_name="s", storage=storage)
    for seed in (0, 1, 2):
        worker = optuna.load_study(study_name="s", storage=storage, sampler=tuning.CoordinateGLDSampler(seed))
        worker.optimize(lambda trial: (trial.suggest_float("x", 0, 1) - 0.3) ** 2, n_trials=5)
    study = optuna.load_study(study_name="s", storage=storage)
    assert len(study.trials) == 15
    assert study.best_value < 0.02


def test_several_values_have_no_way_down() -> None:
    study = optuna.create_study(directions=["minimize", "minimize"], sampler=tuning.GLDSampler(0))
    with pytest.raises(ConfigError, match="one direction"):
        study.optimize(lambda trial: (trial.suggest_float("x", 0, 1), 0.0), n_trials=3)


def test_unknown_sampler() -> None:
    with pytest.raises(ConfigError, match="choose from"):
        tuning.sampler("grid")


def test_without_optuna_the_extra_is_named(monkeypatch) -> None:
    for name in list(sys.modules):
        if name.split(".")[0] == "optuna" or name.startswith("paretorch.workflows.tuning.samplers"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtraError, match="paretorch\\[tune\\]"):
        _ = tuning.GLDSampler
    assert len(tuning.alpha_grid()) == 21


def test_without_cmaes_the_extra_is_named_before_the_first_trial(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "cmaes", None)
    with pytest.raises(MissingExtraError, match="paretorch\\[tune\\]"):
        tuning.search(lambda alpha, eps, alive: pytest.fail("nothing is trained"), [1.0, 2.0], [1.0], method="cmaes")
