"""The shortest-paths task against enumeration of all paths."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paretorch.errors import ConfigError
from paretorch.zoo.data.shortest_paths import curriculum, f1, generate, shortest_paths


def _enumerate(start: tuple[int, int], end: tuple[int, int], blocked: Tensor) -> list[list[tuple[int, int]]]:
    """Every path from start to end that visits no cell twice."""
    height, width = blocked.shape
    complete, open_paths = [], [[start]]
    while open_paths:
        path = open_paths.pop()
        if path[-1] == end:
            complete.append(path)
            continue
        y, x = path[-1]
        for cell in ((y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)):
            inside = 0 <= cell[0] < height and 0 <= cell[1] < width
            if inside and cell not in path and not blocked[cell]:
                open_paths.append([*path, cell])
    return complete


_CELLS = st.tuples(st.integers(0, 2), st.integers(0, 3))


@settings(max_examples=60, deadline=None)
@given(start=_CELLS, end=_CELLS, walls=st.sets(_CELLS, max_size=6), limit=st.integers(1, 11))
def test_equals_enumeration(start: tuple[int, int], end: tuple[int, int], walls: set, limit: int) -> None:
    blocked = torch.zeros(3, 4, dtype=torch.bool)
    for cell in walls - {start, end}:
        blocked[cell] = True
    first, second = torch.zeros_like(blocked), torch.zeros_like(blocked)
    first[start] = second[end] = True
    labels, length = shortest_paths(first[None], second[None], blocked[None], limit)
    paths = [path for path in _enumerate(start, end, blocked) if len(path) - 1 <= limit]
    shortest = min((len(path) for path in paths), default=limit + 2) - 1
    expected = torch.zeros_like(blocked)
    for path in paths:
        if len(path) - 1 == shortest:
            for cell in path:
                expected[cell] = True
    assert int(length) == shortest
    assert torch.equal(labels[0], expected)


@settings(max_examples=15, deadline=None)
@given(limit=st.integers(1, 9), seed=st.integers(0, 999), size=st.integers(2, 12))
def test_samples_are_what_the_task_says(limit: int, seed: int, size: int) -> None:
    grids = generate(20, limit, seed, size)
    queries, blocked = grids.inputs.unbind(1)
    assert grids.inputs.shape == (20, 2, size, size)
    assert queries.flatten(1).sum(1).tolist() == [2] * 20
    assert not (queries & blocked).any()
    assert not (grids.labels & blocked).any()
    assert (grids.labels | ~queries).all(), "both ends are on the path"
    assert grids.distances.min() >= 1
    assert grids.distances.max() <= limit
    assert (grids.labels.flatten(1).sum(1) >= grids.distances + 1).all()


def test_crowded_grids_are_drawn_again() -> None:
    grids = generate(50, 4, 0, size=6, obstacles=0.6)
    assert len(grids.labels) == 50
    assert grids.distances.max() <= 4


def test_a_tenth_are_obstacles() -> None:
    assert float(generate(200, 10, 0).inputs[:, 1].float().mean()) == pytest.approx(0.1, abs=0.005)


def test_generation_is_a_function_of_the_seed() -> None:
    one, same, other = (generate(10, 6, seed) for seed in (3, 3, 4))
    assert torch.equal(one.inputs, same.inputs)
    assert not torch.equal(one.inputs, other.inputs)


def test_curriculum() -> None:
    sets = curriculum(0, count=60)
    assert [int(grids.distances.max()) for grids in sets] == [2, 4, 6, 8, 10]
    assert {tuple(grids.inputs.shape) for grids in sets} == {(60, 2, 32, 32)}
    assert not torch.equal(curriculum(1, 5)[0].inputs, sets[0].inputs[:5])


def test_no_samples() -> None:
    assert generate(0, 2, 0).inputs.shape == (0, 2, 32, 32)


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"limit": 2, "size": 1}, {"limit": 2, "obstacles": 1.0}])
def test_impossible_grids(wrong: dict) -> None:
    with pytest.raises(ConfigError, match="Grids need"):
        generate(1, seed=0, **wrong)


def test_f1_has_its_factor_two() -> None:
    labels = torch.tensor([1, 1, 0, 0, 1])
    assert f1(labels, labels) == 1.0
    assert f1(labels, 1 - labels) == 0.0
    assert f1(labels, torch.tensor([1, 0, 1, 0, 0])) == pytest.approx(2 * 1 / (3 + 2))
    assert f1(torch.zeros(3), torch.zeros(3)) == 1.0
