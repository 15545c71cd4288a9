"""The shortest-paths task of chapter 3: mark every cell that lies on some shortest path between two points.

The thesis counts diagonal moves in one place and Manhattan distance in another. Here a move goes to one of the four
neighbours that is no obstacle, and the distance of the curriculum is the number of moves of the shortest path.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from paretorch.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Grids:
    """Samples of the task.

    Args:
        inputs: query points and obstacles, bool [N, 2, size, size].
        labels: cells on a shortest path, bool [N, size, size].
        distances: lengths of the shortest paths, int64 [N].
    """

    inputs: Tensor
    labels: Tensor
    distances: Tensor


def curriculum(seed: int, count: int = 5000) -> tuple[Grids, ...]:
    """The five sets of the thesis: `count` samples each, with distances of at most 2, 4, 6, 8 and 10."""
    return tuple(generate(count, limit, seed * 5 + step) for step, limit in enumerate((2, 4, 6, 8, 10)))


def generate(count: int, limit: int, seed: int, size: int = 32, obstacles: float = 0.1) -> Grids:
    """Draw `count` grids whose query points are 1 to `limit` moves apart; a pure function of its arguments.

    The first point is uniform over the grid, the second over the cells at Manhattan distance ≤ `limit` from it, and every
    other cell is an obstacle with probability `obstacles`. A sample whose points are not connected within `limit` moves
    is drawn again as a whole.
    """
    if limit < 1 or size < 2 or not 0 <= obstacles < 1:
        raise ConfigError(
            f"Grids need limit ≥ 1, size ≥ 2 and obstacles in [0, 1), not {limit}, {size} and {obstacles}"
        )
    generator = torch.Generator().manual_seed(seed)
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    missing = count
    while missing > 0:
        first, second, blocked = _draw(missing, limit, size, obstacles, generator)
        labels, distances = shortest_paths(first, second, blocked, limit)
        found = distances <= limit
        inputs = torch.stack([first | second, blocked], 1)
        parts.append((inputs[found], labels[found], distances[found]))
        missing -= int(found.sum())
    if not parts:
        empty = torch.zeros(0, 2, size, size, dtype=torch.bool)
        return Grids(empty, empty[:, 0], torch.zeros(0, dtype=torch.int64))
    return Grids(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def shortest_paths(first: Tensor, second: Tensor, blocked: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """Which cells are on a shortest path, bool [N, H, W], and its length [N]; no cell and limit + 1 if there is none.

    `first` and `second` mark one cell each, `blocked` the obstacles. A cell c is on some shortest path if and only if
    d(first, c) + d(c, second) = d(first, second).
    """
    from_first = _distances(first, ~blocked, limit)
    from_second = _distances(second, ~blocked, limit)
    length = from_first.masked_fill(~second, limit + 1).flatten(1).amin(1)
    on_path = from_first + from_second == length[:, None, None]
    return on_path & (length <= limit)[:, None, None], length.long()


def f1(labels: Tensor, predictions: Tensor) -> float:
    """F₁ = 2 Σ 1{y = ŷ = 1} / (Σ 1{y = 1} + Σ 1{ŷ = 1}) over all cells, with the factor 2 that the thesis leaves out.

    It is 1 if both are empty.
    """
    labels, predictions = labels.bool(), predictions.bool()
    total = int(labels.sum()) + int(predictions.sum())
    return 2 * int((labels & predictions).sum()) / total if total else 1.0


def _draw(
    count: int, limit: int, size: int, obstacles: float, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    cells = torch.arange(size * size)
    start = torch.randint(size * size, (count,), generator=generator)
    rows, columns = cells // size, cells % size
    apart = (rows - rows[start][:, None]).abs() + (columns - columns[start][:, None]).abs()
    near = (apart > 0) & (apart <= limit)
    end = torch.multinomial(near.float(), 1, generator=generator)[:, 0]
    blocked = torch.rand(count, size * size, generator=generator) < obstacles
    first, second = F.one_hot(start, size * size).bool(), F.one_hot(end, size * size).bool()
    blocked &= ~(first | second)
    shape = (count, size, size)
    return first.view(shape), second.view(shape), blocked.view(shape)


def _distances(start: Tensor, free: Tensor, limit: int) -> Tensor:
    """Breadth-first search in all grids at once: moves from `start` through `free` cells; limit + 1 if farther."""
    distances = torch.full(start.shape, limit + 1, dtype=torch.int32, device=start.device)
    seen = start & free
    distances.masked_fill_(seen, 0)
    for step in range(1, limit + 1):
        wider = seen.clone()
        wider[:, 1:] |= seen[:, :-1]
        wider[:, :-1] |= seen[:, 1:]
        wider[:, :, 1:] |= seen[:, :, :-1]
        wider[:, :, :-1] |= seen[:, :, 1:]
        wider &= free
        distances.masked_fill_(wider & ~seen, step)
        seen = wider
    return distances
