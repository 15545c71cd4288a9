"""Continuous Sparsification of trained networks: decisions that follow saliencies."""

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from paretorch import ContinuousSparsification, Plan, compress
from paretorch.errors import ConfigError


def trained_net(seed: int = 0) -> nn.Module:
    """Heavy tails, as training leaves them."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 3))
    with torch.no_grad():
        for layer in model:
            if isinstance(layer, nn.Linear):
                layer.weight.pow_(3).div_(layer.weight.std() * 2)
    return model


def data(seed: int = 1) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randn(16, 6, generator=generator)


def train(
    model: nn.Module, plan: Plan, steps: int, scale: float = 1.0, lr: float = 0.002, skip: int = 0
) -> list[Tensor]:
    teacher = copy.deepcopy(trained_net())
    optimizer = torch.optim.SGD(plan.param_groups(), lr=lr / scale)
    gradients = []
    for index, x in zip(range(skip + steps), data(), strict=False):
        if index < skip:
            continue
        loss = (model(x) - teacher(x).detach()).square().sum() + 0.1 * model(x).square().sum()
        (scale * loss).backward()
        gradients.append([layer.weight.grad.clone() for layer in model if isinstance(layer, nn.Linear)])
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
    return gradients


def zeros_of(model: nn.Module) -> Tensor:
    return torch.cat([layer.weight.detach().eq(0).flatten() for layer in model if isinstance(layer, nn.Linear)])


def start_of(model: nn.Module) -> str:
    plan = compress(model, ContinuousSparsification(target=0.5), steps=10)
    (method,) = plan.methods()
    return method.start


def test_start_is_chosen_by_the_look_of_the_network() -> None:
    torch.manual_seed(0)
    fresh = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    normal = nn.Sequential(nn.Embedding(200, 64), nn.Linear(64, 64))
    with torch.no_grad():
        normal[1].weight.normal_(0.0, 0.02)
    normed = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.Linear(32, 2))
    seen = copy.deepcopy(normed)
    seen(torch.randn(8, 6))
    assert [start_of(one) for one in (fresh, normal, normed)] == ["uniform"] * 3
    assert [start_of(one) for one in (seen, trained_net())] == ["saliency"] * 2


def test_network_is_whole_at_the_start() -> None:
    model, x = trained_net(), next(data())
    before = model(x)
    compress(model, ContinuousSparsification(target=0.9), steps=10)
    torch.testing.assert_close(model(x), before)


@pytest.mark.parametrize("group", ["weight", "channel"])
def test_follows_its_formula(group: str) -> None:
    model, steps = trained_net(), 20
    plan = compress(model, ContinuousSparsification(target=0.5, group=group), steps=steps)
    layers = [layer for layer in model if isinstance(layer, nn.Linear)]
    axes = (0, 1) if group == "weight" else (0,)

    def grouped(values: Tensor) -> Tensor:
        return values if len(axes) == 2 else values.sum(1, keepdim=True)

    magnitude = [grouped(layer.paretorch_weight.latent.abs()) for layer in layers]
    start = [one / one.mean() for one in magnitude]
    running = [torch.zeros_like(one) for one in start]
    for step in range(1, 7):
        theta = [layer.paretorch_weight.latent.detach().clone() for layer in layers]
        (gradients,) = train(model, plan, 1, skip=step - 1)
        moved = [grouped(t * g).abs() for t, g in zip(theta, gradients, strict=True)]
        overall = sum(float(one.sum()) for one in moved) / sum(one.numel() for one in moved)
        rate = max(1.0 / step, 10 / steps)
        for index, (one, first) in enumerate(zip(moved, start, strict=True)):
            q = (one + 0.05 * one.mean() * first) / overall + 1e-7
            running[index] = (1 - rate) * running[index] + rate * q
        for layer, value in zip(layers, running, strict=True):
            torch.testing.assert_close(layer.paretorch_weight.sparsity.s.detach().exp(), value, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("scale", [2.0**-13, 2.0**13])
def test_scale_of_the_loss_changes_nothing(scale: float) -> None:
    found = []
    for factor in (1.0, scale):
        model = trained_net()
        plan = compress(model, ContinuousSparsification(target=0.8), steps=40)
        train(model, plan, 40, scale=factor)
        plan.harden()
        found.append(zeros_of(model))
    assert torch.equal(*found)


@pytest.mark.parametrize("steps", [300, 1000])
def test_masks_are_decided_at_harden(steps: int, recwarn: pytest.WarningsRecorder) -> None:
    model = trained_net()
    plan = compress(model, ContinuousSparsification(target=0.8), steps=steps)
    train(model, plan, steps)
    x = next(data(5))
    soft = model(x)
    plan.harden()
    assert not [one for one in recwarn if "rounding will change the network" in str(one.message)]
    assert float((model(x) - soft).norm() / soft.norm()) < 0.1
    kept = int((~zeros_of(model)).sum())
    assert kept == round(0.2 * len(zeros_of(model)))


def test_rows_that_the_data_never_shows_are_ranked_by_magnitude() -> None:
    torch.manual_seed(0)
    table = nn.Embedding(40, 8)
    with torch.no_grad():
        table.weight.pow_(3)
    model = nn.Sequential(table, nn.Linear(8, 2))
    plan = compress(model, ContinuousSparsification(target=0.6, exclude="1", start="saliency"), steps=30)
    size = table.weight.detach().abs()[20:].flatten()
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.01)
    for step in range(30):
        rows = torch.randint(0, 20, (16,), generator=torch.Generator().manual_seed(step))
        model(rows).square().mean().backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
    plan.harden()
    unseen = plan.finalize()[0].weight.detach()[20:].flatten()
    kept = unseen != 0
    assert 0 < int(kept.sum()) < len(kept)
    assert float(size[kept].min()) >= float(size[~kept].max())


def test_state_goes_on_in_a_network_that_looks_untrained() -> None:
    model = trained_net()
    plan = compress(model, ContinuousSparsification(target=0.7), steps=20)
    train(model, plan, 10)
    torch.manual_seed(3)
    fresh = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 3))
    resumed = compress(fresh, ContinuousSparsification(target=0.7), steps=20)
    assert resumed.methods()[0].start == "uniform"
    fresh.load_state_dict(model.state_dict())
    resumed.load_state_dict(plan.state_dict())
    assert resumed.methods()[0].start == "saliency"
    train(model, plan, 10, skip=10)
    train(fresh, resumed, 10, skip=10)
    x = next(data(9))
    assert torch.equal(model(x), fresh(x))


def test_refuses_what_cannot_work() -> None:
    with pytest.raises(ConfigError, match="start='size' is not known"):
        compress(trained_net(), ContinuousSparsification(target=0.5, start="size"), steps=10)
    with pytest.raises(ConfigError, match="needs a target"):
        compress(trained_net(), ContinuousSparsification(start="saliency"), steps=10)
    with pytest.raises(ConfigError, match="penalty"):
        compress(trained_net(), ContinuousSparsification(target=0.5, start="saliency", penalty=0.1), steps=10)
