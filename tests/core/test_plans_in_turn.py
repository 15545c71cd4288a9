"""A network that was compressed and finalized may be compressed again; its file tells of both."""

from pathlib import Path

import pytest
import torch
from torch import nn

import paretorch as pt
from paretorch.core.method import Method

X = torch.randn(5, 3, 4, 4, generator=torch.Generator().manual_seed(1))
CHANNELS = pt.ContinuousSparsification(target=0.4, group="channel")


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 4),
    )


def _compressed(model: nn.Module, *methods: Method, budget: int | None = None) -> nn.Module:
    plan = pt.compress(model, *methods, steps=2, example=X, budget=budget)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.02)
    for _ in range(2):
        model.train()(X).square().mean().backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
    plan.harden(optimizer)
    return plan.finalize().eval()


SECOND: dict[str, tuple[tuple[Method, ...], int | None]] = {
    "channels": ((CHANNELS,), None),
    "bits": ((pt.SMOL(target_bits=2.0, scale="auto"),), None),
    "nothing to tell": ((pt.ContinuousSparsification(target=0.5),), None),
    "a budget": ((pt.ContinuousSparsification(), pt.SMOL()), 1000),
}


@pytest.mark.filterwarnings("ignore::paretorch.errors.PareWarning")
@pytest.mark.parametrize(("methods", "budget"), SECOND.values(), ids=SECOND)
def test_the_file_of_a_network_compressed_twice_loads(
    methods: tuple[Method, ...], budget: int | None, tmp_path: Path
) -> None:
    twice = _compressed(_compressed(_net(), CHANNELS), *methods, budget=budget)
    path = tmp_path / "twice.pare"
    pt.save(twice, path)
    assert torch.equal(pt.load(path, into=_net()).eval()(X), twice(X))
    if budget is not None:
        assert path.stat().st_size <= budget


@pytest.mark.filterwarnings("ignore::paretorch.errors.PareWarning")
def test_scales_of_weights_that_were_compressed_again_are_told_anew() -> None:
    once = _compressed(_net(), pt.SMOL(target_bits=2.0, scale="auto"))
    scales = [edit.weight for edit in once.paretorch_edits]
    twice = _compressed(once, pt.SMOL(target_bits=1.0, scale="auto", include="0"))
    assert sorted(edit.weight for edit in twice.paretorch_edits) == sorted(scales)
