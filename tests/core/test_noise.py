"""Noise is uniform, and a function of seed, step and position that neither compiling nor dtypes change."""

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from paretorch.core.step.noise import seed_for, uniform

SHAPE = torch.Size((400, 500))
COUNT = SHAPE.numel()


def draw(step: int = 3, seed: int = 5) -> Tensor:
    return uniform(SHAPE, torch.tensor(step), seed)


def correlation(a: Tensor, b: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1])


@pytest.mark.parametrize("step", [0, 1, 1000, 2**31, 2**40])
@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
def test_is_uniform(step: int, seed: int) -> None:
    x = draw(step, seed)
    assert x.dtype == torch.float32
    assert -1.0 < float(x.min()) < -0.999
    assert 0.999 < float(x.max()) < 1.0
    assert abs(float(x.mean())) < 5 * (1 / 3 / COUNT) ** 0.5
    assert float(x.var()) == pytest.approx(1 / 3, rel=0.01)
    counts = torch.histc(x, 64, -1, 1)
    chi_squared = float(((counts - COUNT / 64) ** 2 / (COUNT / 64)).sum())
    assert chi_squared < 63 + 5 * (2 * 63) ** 0.5


LIMIT = 5 / COUNT**0.5


@pytest.mark.parametrize("other", [(4, 5), (2, 5), (3, 6), (3, 4), (4, 6), (2, 6), (4, 4), (3 + 2**20, 5), (5, 3)])
def test_no_correlation_between_steps_and_seeds(other: tuple[int, int]) -> None:
    a, b = draw(3, 5), draw(*other)
    assert abs(correlation(a, b)) < LIMIT
    assert abs(correlation(a.abs(), b.abs())) < LIMIT
    for lag in (1, 2, 499, 500):
        assert abs(correlation(a.flatten()[lag:], b.flatten()[:-lag])) < LIMIT


@pytest.mark.parametrize("lag", [1, 2, 3, 4, 8, 9, 16, 27, 64, 256, 500, 576, 1024])
def test_no_correlation_between_neighbours(lag: int) -> None:
    x = draw().flatten()
    assert abs(correlation(x[lag:], x[:-lag])) < LIMIT
    assert abs(correlation(x[lag:].abs(), x[:-lag].abs())) < LIMIT


def test_no_two_steps_hold_the_same_numbers() -> None:
    """No step is a permutation of another, as it would be if the step only shifted the position."""
    first = draw(0).flatten().sort().values
    assert all(not torch.equal(first, draw(step).flatten().sort().values) for step in range(1, 20))


def test_one_weight_over_the_steps_is_uniform() -> None:
    steps = torch.stack([uniform(torch.Size((64,)), torch.tensor(t), 9) for t in range(2000)])
    assert float(steps.mean(0).abs().max()) < 5 * (1 / 3 / 2000) ** 0.5
    assert float((steps.var(0) - 1 / 3).abs().max()) < 0.05
    pairs = torch.corrcoef(steps.T) - torch.eye(64)
    assert float(pairs.abs().max()) < 5.5 / 2000**0.5


def test_channels_have_their_own_noise() -> None:
    rows = torch.corrcoef(draw()[:50]) - torch.eye(50)
    assert float(rows.abs().max()) < 5.5 / 500**0.5


def test_the_same_again_and_under_compile() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(uniform, backend="aot_eager", fullgraph=True)
    step = torch.tensor(12, dtype=torch.int64)
    expected = uniform(SHAPE, step, 77)
    assert torch.equal(uniform(SHAPE, step.clone(), 77), expected)
    assert torch.equal(compiled(SHAPE, step, 77), expected)
    assert torch.equal(compiled(SHAPE, step + 1, 77), uniform(SHAPE, step + 1, 77))
    assert torch.equal(uniform(torch.Size((COUNT,)), step, 77).view(SHAPE), expected)


def test_a_compiler_has_little_to_write() -> None:
    """A fused expression is written out once for every use of every value in it: a hash of hashes takes minutes to compile."""
    graph = make_fx(lambda step: uniform(SHAPE, step, 77))(torch.tensor(12)).graph
    written: dict[object, int] = {}
    for node in graph.nodes:
        written[node] = 1 + sum(written[one] for one in node.all_input_nodes for _ in range(node.args.count(one) or 1))
    assert max(written.values()) < 100


def test_each_weight_has_its_own_stream() -> None:
    names = [f"layer{i}.{j}.weight" for i in range(30) for j in range(30)]
    assert len({seed_for(0, name) for name in names}) == len(names)
    assert seed_for(0, "a.weight") != seed_for(1, "a.weight")
    assert all(0 <= seed_for(7, name) < 2**32 for name in names)
    assert seed_for(0, "a.weight") == seed_for(2**32, "a.weight")
