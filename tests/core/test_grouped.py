"""Grouped convolutions down to one input a group: cut in whatever order the edits come."""

from pathlib import Path

import pytest
import torch
from torch import nn

import paretorch as pt
from paretorch.edits import KeepChannels

X = torch.randn(4, 3, 4, 4, generator=torch.Generator().manual_seed(1))


def _net(groups: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1, groups=groups), nn.BatchNorm2d(16), nn.Conv2d(16, 8, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    )  # fmt: skip


@pytest.mark.parametrize(("groups", "target"), [(2, 0.5), (2, 0.85), (4, 0.5), (4, 0.7)])
def test_grouped_convolutions_lose_channels_and_outputs_stay(groups: int, target: float, tmp_path: Path) -> None:
    model = _net(groups)
    plan = pt.compress(model, pt.ContinuousSparsification(target=target, group="channel"), steps=10, example=X)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.02)
    for _ in range(10):
        nn.functional.cross_entropy(model(X), torch.arange(4)).backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
    plan.harden(optimizer)
    expected = model.eval()(X)
    small = plan.finalize()
    assert small[2].groups == groups
    assert small[2].weight.shape < (16, 8 // groups, 3, 3)
    torch.testing.assert_close(small(X), expected, atol=1e-5, rtol=1e-5)
    pt.save(small, tmp_path / "small.pare")
    assert torch.equal(pt.load(tmp_path / "small.pare", into=_net(groups)).eval()(X), small(X))


@pytest.mark.parametrize("inputs_first", [False, True])
def test_the_order_of_edits_does_not_matter(inputs_first: bool) -> None:
    model = _net(4)
    edits = [
        KeepChannels("7777", 16, outputs=("2", "3"), inputs=("4",)),
        KeepChannels("55", 8, outputs=("0",), inputs=("2",)),
    ]
    for edit in reversed(edits) if inputs_first else edits:
        edit.apply(model)
    assert (model[2].in_channels, model[2].out_channels, model[2].groups) == (4, 12, 4)
    assert model[2].weight.shape == (12, 1, 3, 3)
    assert model(X).shape == (4, 4)
