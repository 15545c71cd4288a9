"""Drawn masks: the best of several is kept, what ISS drops stays dropped, draws follow their probabilities."""

import math

import pytest
import torch
from torch import nn

from paretorch import compress
from paretorch.core.method import Method
from paretorch.errors import ConfigError
from paretorch.methods.sparsity.rivals import (
    GradualMagnitude,
    HardConcrete,
    StochasticSparsification,
    drop_fallen,
    harden_best,
)
from tests.contract.cases import MODELS, build
from tests.contract.loop import equal, optimizer_of, snapshot, train
from tests.decisions import relaxed


@pytest.mark.parametrize(
    "method",
    [HardConcrete(open_at_start=0.5), StochasticSparsification(target=0.5, init=0.0), HardConcrete(target=0.7)],
)
def test_the_best_draw_is_kept(method: Method) -> None:
    network = build("linear")
    plan = compress(network, method, steps=4)
    seen: list[float] = []
    outputs: list[torch.Tensor] = []
    x = MODELS["linear"].batch(6)

    def evaluate(model: nn.Module) -> float:
        outputs.append(model(x))
        seen.append(float(outputs[-1].sum()))
        return seen[-1]

    best = harden_best(plan, evaluate, draws=5)
    assert len(seen) == len(set(seen)) == 5, "five different masks"
    assert best == max(seen)
    assert plan.is_hard
    assert torch.equal(network(x), outputs[seen.index(best)])


def test_draws_repeat_with_the_seed() -> None:
    ends = []
    for seed in (0, 0, 1):
        plan = compress(build("linear"), StochasticSparsification(init=0.0), steps=4, seed=seed)
        plan.harden()
        ends.append(plan.dense_state_dict())
    assert equal(ends[0], ends[1])
    assert not equal(ends[0], ends[2])


def test_draws_have_their_probability() -> None:
    network = nn.Linear(200, 200)
    plan = compress(network, StochasticSparsification(init=-1.0), steps=4)
    expected = 1 - float(torch.sigmoid(torch.tensor(-1.0)))
    assert plan.metrics()["sparsity"] == pytest.approx(expected, abs=1e-5)
    assert float((network.weight == 0).float().mean()) == pytest.approx(expected, abs=0.01)
    plan.harden()
    assert plan.metrics()["sparsity"] == pytest.approx(expected, abs=0.01)


def test_only_drawn_masks_can_be_drawn() -> None:
    plan = compress(build("linear"), GradualMagnitude(target=0.5), steps=4)
    with pytest.raises(ConfigError, match="draws no masks"):
        harden_best(plan, lambda model: 0.0)
    plan = compress(build("linear"), HardConcrete(), steps=4)
    with pytest.raises(ConfigError, match="1 or more"):
        harden_best(plan, lambda model: 0.0, draws=0)


def test_iss_drops_what_has_fallen_for_good() -> None:
    network = build("linear")
    plan = compress(network, StochasticSparsification(lr=2.0, penalty=0.0), steps=12)
    optimizer, x = optimizer_of(plan), MODELS["linear"].batch(6)
    train(network, plan, optimizer, x, 6)
    fallen = {name: own.sparsity.decision.detach() < 1.0 for name, own in relaxed(network).items()}
    drop_fallen(plan)
    assert any(bool(gone.any()) for gone in fallen.values())
    for _ in range(3):
        train(network, plan, optimizer, x, 1)
        for name, gone in fallen.items():
            assert bool((network.get_parameter(name)[gone] == 0).all())
    assert all(bool(torch.isfinite(value).all()) for value in snapshot(network).values())
    plan.harden()
    for name, gone in fallen.items():
        assert bool((network.get_parameter(name)[gone] == 0).all())


def test_a_draw_without_a_score_is_never_the_best() -> None:
    scores = iter([math.nan, 0.5, 0.7])
    plan = compress(build("linear"), StochasticSparsification(), steps=4)
    assert harden_best(plan, lambda model: next(scores), draws=3) == 0.7
    plan = compress(build("linear"), StochasticSparsification(), steps=4)
    with pytest.raises(ConfigError, match="nan for every draw"):
        harden_best(plan, lambda model: math.nan, draws=2)
    with pytest.raises(ConfigError, match="give 1 or more"):
        harden_best(plan, lambda model: 0.0, draws=2.0)  # type: ignore[arg-type]
    assert not plan.is_hard
