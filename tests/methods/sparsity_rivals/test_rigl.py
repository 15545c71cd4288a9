"""RigL against its Algorithm 1, written out with no code of the library, and its options."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paretorch import SMOL, compress
from paretorch.errors import ConfigError
from paretorch.methods.sparsity.rivals.rigl import RigL, kept_counts
from tests.contract.cases import MODELS, build, loss_of
from tests.contract.loop import optimizer_of, train

STEPS = 24


def layers(network: nn.Module) -> list[nn.Parameter]:
    return [module.weight for module in network.modules() if isinstance(module, nn.Linear | nn.Conv2d)]


class AlgorithmOne:
    """Masked SGD with momentum and decay; every Δt steps some kept weights go, and as many come where |gradient| is largest."""

    def __init__(self, model: str, masks: list[Tensor], every: int, alpha: float, end: float) -> None:
        self.network, self.masks = build(model), [mask.clone() for mask in masks]
        self.every, self.alpha, self.end = every, alpha, end
        self.thetas = [weight.detach().clone() for weight in layers(self.network)]
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
        self.moved = 0

    def effective(self) -> list[Tensor]:
        return [theta * mask for theta, mask in zip(self.thetas, self.masks, strict=True)]

    def step(self, t: int, x: Tensor) -> None:
        for weight, value in zip(layers(self.network), self.effective(), strict=True):
            weight.data.copy_(value)
        self.optimizer.zero_grad()
        loss_of(self.network(x)).backward()
        gradients = [weight.grad.clone() for weight in layers(self.network)]
        for i, weight in enumerate(layers(self.network)):
            weight.data.copy_(self.thetas[i])
            weight.grad.mul_(self.masks[i])
        self.optimizer.step()
        self.thetas = [weight.detach().clone() for weight in layers(self.network)]
        if t % self.every == 0 and t < self.end:
            for i, gradient in enumerate(gradients):
                self.renew(self.thetas[i].view(-1), self.masks[i].view(-1), gradient.flatten(), t)

    def renew(self, theta: Tensor, mask: Tensor, gradient: Tensor, t: int) -> None:
        """Of one layer, one weight at a time."""
        active = [i for i in range(len(mask)) if mask[i]]
        k = math.floor(self.alpha / 2 * (1 + math.cos(t * math.pi / self.end)) * len(active))
        drop = set(sorted(active, key=lambda i: abs(float(theta[i])))[:k])
        others = [i for i in range(len(mask)) if i not in active or i in drop]
        grow = set(sorted(others, key=lambda i: -abs(float(gradient[i])))[:k])
        for i in grow - set(active):
            theta[i] = 0.0
        self.moved += len(grow - set(active))
        for i in range(len(mask)):
            mask[i] = float(i in grow or (i in active and i not in drop))


@pytest.mark.parametrize("model", ["linear", "conv2d"])
@pytest.mark.parametrize(
    ("density", "start", "fraction", "every", "stop"),
    [("uniform", "magnitude", 0.3, 3, 0.75), ("erk", "random", 0.5, 2, 1.0), ("uniform", "random", 1.0, 5, 0.5)],
)
def test_follows_algorithm_1(model: str, density: str, start: str, fraction: float, every: int, stop: float) -> None:
    network, x = build(model), MODELS[model].batch(6)
    method = RigL(target=0.7, density=density, start=start, fraction=fraction, every=every, stop=stop)
    plan = compress(network, method, steps=STEPS)
    optimizer = optimizer_of(plan)
    masks = [(weight != 0).float() for weight in layers(network)]
    kept = [int(mask.sum()) for mask in masks]
    reference = AlgorithmOne(model, masks, every, fraction, stop * STEPS)
    for t in range(1, STEPS + 1):
        train(network, plan, optimizer, x, 1)
        reference.step(t, x)
        for value, expected in zip(layers(network), reference.effective(), strict=True):
            torch.testing.assert_close(value.detach(), expected, rtol=1e-4, atol=1e-6, msg=lambda m, t=t: f"{t}: {m}")
        assert [int(mask.sum()) for mask in reference.masks] == kept, "a layer keeps as many as at the start"
        assert plan.metrics()["sparsity"] == pytest.approx(0.7, abs=0.01)
    assert reference.moved > 0
    before = [weight.detach().clone() for weight in layers(network)]
    plan.harden()
    assert all(torch.equal(a, b) for a, b in zip(before, layers(network), strict=True)), "rounding changes nothing"


def test_the_first_masks_keep_the_largest_weights() -> None:
    network, dense = build("linear"), build("linear")
    compress(network, RigL(target=0.7), steps=STEPS)
    for weight, value in zip(layers(dense), layers(network), strict=True):
        kept, size = value != 0, weight.detach().abs()
        assert bool(size[kept].min() > size[~kept].max())


def test_random_masks_follow_the_seed() -> None:
    masks = []
    for seed in (0, 0, 1):
        network = build("linear")
        compress(network, RigL(target=0.5, start="random"), steps=STEPS, seed=seed)
        masks.append(torch.cat([(weight != 0).flatten() for weight in layers(network)]))
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])


def test_keeps_to_its_target_beside_precisions() -> None:
    network, x = build("conv2d"), MODELS["conv2d"].batch(6)
    plan = compress(network, RigL(target=0.5, every=2), SMOL(target_bits=1.5), steps=STEPS)
    first = [weight != 0 for weight in layers(network)]
    losses = train(network, plan, optimizer_of(plan), x, STEPS)
    assert losses[-1] < losses[0]
    plan.harden()
    kept = [weight != 0 for weight in layers(network)]
    assert [int(one.sum()) for one in kept] == [int(one.sum()) for one in first]
    assert any(bool((now & ~before).any()) for now, before in zip(kept, first, strict=True)), "some have moved"


def test_erk_spreads_by_the_sum_of_the_dimensions() -> None:
    shapes = [(16, 3, 3, 3), (64, 16, 3, 3), (128, 64, 3, 3), (10, 128)]
    sizes = [math.prod(shape) for shape in shapes]
    for density in (0.02, 0.1, 0.3, 0.9):
        low, high = 0.0, float(sum(sizes))
        for _ in range(200):  # ε by bisection
            middle = (low + high) / 2
            share = sum(min(1.0, middle * sum(s) / n) * n for s, n in zip(shapes, sizes, strict=True))
            low, high = (middle, high) if share < density * sum(sizes) else (low, middle)
        expected = [min(1.0, low * sum(s) / n) * n for s, n in zip(shapes, sizes, strict=True)]
        counts = kept_counts(shapes, density, "erk")
        assert all(abs(got - one) <= 1 for got, one in zip(counts, expected, strict=True))
        assert sum(counts) == math.floor(density * sum(sizes) + 0.5)


def test_no_layer_is_left_without_a_weight() -> None:
    assert kept_counts([(4, 4), (100, 100)], 0.001, "uniform") == [1, 9]
    assert kept_counts([(4, 4), (4, 4), (4, 4)], 2 / 48, "uniform") == [0, 1, 1]
    assert kept_counts([(5, 7), (3, 3)], 1.0, "erk") == [35, 9]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": None}, "needs a target"),
        ({"density": "even"}, 'use "uniform" or "erk"'),
        ({"start": "zero"}, 'use "magnitude" or "random"'),
        ({"fraction": 0.0}, "above 0, up to 1"),
        ({"fraction": 1.5}, "above 0, up to 1"),
        ({"every": 0}, "1 or more"),
        ({"every": 2.5}, "1 or more"),
        ({"stop": 0.0}, "until the masks stay"),
        ({"stop": "late"}, "until the masks stay"),
        ({"group": "channel"}, "single weights"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compress(build("linear"), RigL(**{"target": 0.5, **options}), steps=STEPS)
