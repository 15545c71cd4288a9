"""Targets midway between two numbers of channels: rounding keeps what the search was steered to."""

import pytest
import torch
from torch import nn

import paretorch as pt
from paretorch.core.channels.coupling import threshold_for
from tests.decisions import noting


@pytest.mark.parametrize("width", [5, 7, 9, 11, 13])
@pytest.mark.parametrize("open_channels", [1, 2, 3])
def test_a_tie_goes_the_same_way_while_searching_and_at_the_end(width: int, open_channels: int) -> None:
    model = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3))
    target = 1.0 - (open_channels + 0.5) / width
    method, terms = noting(pt.ContinuousSparsification(target=target, group="channel"))
    pt.compress(model, method, steps=1, example=torch.randn(2, 6))
    coupling = terms[0].coupling
    assert coupling is not None
    score = torch.linspace(1.0, -1.0, width)
    level = threshold_for(coupling, score, torch.tensor(1.0 - target), "weights", 1, torch.zeros(()))
    steered = score >= level
    assert int(steered.sum()) == open_channels + 1, "in doubt, keep"
    assert torch.equal(coupling.keep_best(score - level, 1.0 - target, "weights", 1), steered)
