"""Shortest paths: sets from seeds of their own, loss per cell, F₁ over all cells."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paretorch.errors import ConfigError
from paretorch.training.tasks.shortest_paths import ShortestPaths, make_grids
from paretorch.zoo.data.shortest_paths import Grids, f1


def _grids(limit: int = 3, validation: int = 0) -> tuple[Grids, Grids]:
    return make_grids(limit, 10, 7, 6, validation)


def test_the_sets_differ_and_repeat() -> None:
    (train, test), (same, validation) = _grids(), _grids(validation=7)
    assert torch.equal(train.inputs, same.inputs)
    assert not torch.equal(train.inputs[:7], test.inputs)
    assert not torch.equal(validation.inputs, test.inputs)
    assert len(validation.labels) == 7


@pytest.mark.parametrize("limit", [2, 4])
def test_paths_are_as_long_as_the_phase_allows(limit: int) -> None:
    train, _ = make_grids(limit, 60, 1, 8, 0)
    assert int(train.distances.max()) == limit


def test_an_epoch_holds_every_grid_once_less_the_last_partial_batch() -> None:
    train, test = _grids()
    task = ShortestPaths([(train, test)], batch=3)
    inputs, labels = task.epoch(0)
    assert inputs.shape == (3, 3, 2, 6, 6)
    known = {tuple(one.flatten().tolist()): two for one, two in zip(train.inputs, train.labels, strict=True)}
    for one, two in zip(inputs.flatten(0, 1), labels.flatten(0, 1), strict=True):
        assert torch.equal(known[tuple(one.flatten().tolist())], two)
    assert not torch.equal(task.epoch(0)[0], task.epoch(1)[0])


class _Guess(nn.Module):
    """Query points and their neighbours to the right."""

    def forward(self, x: Tensor) -> Tensor:
        return (x[:, 0] + x[:, 0].roll(1, 2)).clamp(max=1) * 3 - 1


def test_loss_and_f1_are_those_of_all_cells() -> None:
    train, test = _grids()
    task = ShortestPaths([(train, test)], batch=5)
    inputs, labels = (rows[0] for rows in task.epoch(0))
    logits = _Guess()(inputs.float())
    loss, (score,) = task.loss(_Guess(), (inputs, labels))
    assert loss.item() == pytest.approx(F.binary_cross_entropy_with_logits(logits, labels.float()).item(), rel=1e-6)
    assert score.item() == pytest.approx(f1(labels, logits > 0))
    logits = _Guess()(test.inputs.float())
    expected = F.binary_cross_entropy_with_logits(logits, test.labels.float()).item()
    assert task.evaluate(_Guess()) == pytest.approx(
        {"test_loss": expected, "test_f1": f1(test.labels, logits > 0)}, rel=1e-5
    )
    assert 0 < f1(test.labels, logits > 0) < 1


def test_each_phase_has_sets_of_its_own() -> None:
    phases = [_grids(limit) for limit in (2, 4)]
    task = ShortestPaths(phases, epochs=3, batch=10)
    sums = [sorted(one.sum().item() for one in task.epoch(number)[1][0]) for number in range(6)]
    first, second = (sorted(one.sum().item() for one in train.labels) for train, _ in phases)
    assert sums == [first] * 3 + [second] * 3
    assert first != second
    for number, (_, held_out) in zip((0, 5), phases, strict=True):
        task.epoch(number)
        score = f1(held_out.labels, _Guess()(held_out.inputs.float()) > 0)
        assert task.evaluate(_Guess())["test_f1"] == pytest.approx(score)
        assert task.evaluate(_Guess())["stage"] == number // 3


def test_what_is_fine_tuned_alone_is_so_in_the_last_phase() -> None:
    phases = [_grids(limit) for limit in (2, 4)]
    for number in (0, 3):
        task = ShortestPaths(phases, epochs=0, batch=10)
        _, labels = task.epoch(number)
        assert int(labels.sum()) == int(phases[1][0].labels.sum())
        assert task.evaluate(_Guess())["stage"] == 1


def test_what_cannot_work_is_refused() -> None:
    train, test = _grids()
    with pytest.raises(ConfigError, match="larger than the training set of 10 grids"):
        ShortestPaths([(train, test)], batch=11)
    with pytest.raises(ConfigError, match="at least one grid"):
        make_grids(2, 0, 1, 6, 0)
