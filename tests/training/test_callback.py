"""Which plan a callback follows, where a trainer's module holds several."""

import pytest
import torch
from torch import nn

import paretorch as pt
from paretorch.errors import ConfigError
from paretorch.training.callback import PlanStepper


class Pair(nn.Module):
    """Two networks with plans of their own, or one and an average of it, which comes first."""

    def __init__(self, average: bool) -> None:
        super().__init__()
        net = nn.Linear(4, 4)
        self.plan = _compressed(net)
        self.optimizer = torch.optim.SGD(self.plan.param_groups(), lr=0.1)
        self.first = torch.optim.swa_utils.AveragedModel(net) if average else nn.Linear(4, 4)
        if not average:
            _compressed(self.first)
        self.second = net


def _compressed(network: nn.Module) -> pt.Plan:
    return pt.compress(network, pt.SMOL(target_bits=4.0), steps=2)


def test_the_plan_that_is_followed_is_that_of_the_network_that_is_trained() -> None:
    pair = Pair(average=True)
    assert PlanStepper(pair, [pair.optimizer]).plan is pair.plan


def test_of_two_networks_that_are_trained_none_is_left_behind_without_a_word() -> None:
    pair = Pair(average=False)
    other = torch.optim.SGD(pt.Plan.of(pair.first).param_groups(), lr=0.1)
    with pytest.raises(ConfigError, match="a callback follows one: compress both as one module"):
        PlanStepper(pair, [pair.optimizer, other])
