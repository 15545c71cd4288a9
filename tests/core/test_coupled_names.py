"""Modules that stand in a network under two names: they stay whole, and it is said."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import paretorch as pt
from paretorch.errors import ConfigError
from paretorch.support.eval_mode import doubles
from tests.core.through_nets import Net

METHOD = pt.ContinuousSparsification(target=0.3, group="channel")


class Twice(Net):
    """What is between the convolutions has a second name, under which it is used once more."""

    def __init__(self, between: nn.Module) -> None:
        super().__init__(between)
        self.again, self.more = self.between, nn.Conv2d(12, 12, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.again(self.more(self.between(self.one(x))))
        logits: Tensor = self.head(F.relu(self.two(x)).mean((2, 3)))
        return logits


@pytest.mark.parametrize("between", [lambda: nn.PReLU(12), lambda: nn.InstanceNorm2d(12), lambda: nn.GroupNorm(4, 12)])
def test_what_has_two_names_stays_whole(between: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = Twice(between())
    plan = pt.compress(model, METHOD, steps=1, example=model.x)
    plan.harden()
    expected = model.eval()(model.x).detach()
    small = plan.finalize()
    assert small.one.out_channels == small.more.out_channels == 12
    assert small.two.out_channels < 10
    torch.testing.assert_close(small(model.x), expected, atol=1e-5, rtol=1e-5)


def test_one_slope_may_have_any_number_of_names() -> None:
    torch.manual_seed(0)
    model = Twice(nn.PReLU())
    method = pt.ContinuousSparsification(target=0.5, group="channel", exclude=("two", "head"))
    plan = pt.compress(model, method, steps=1, example=model.x)
    plan.harden()
    expected = model.eval()(model.x).detach()
    small = plan.finalize()
    assert small.one.out_channels + small.more.out_channels < 24
    torch.testing.assert_close(small(model.x), expected, atol=1e-5, rtol=1e-5)


def test_where_nothing_can_go_two_names_are_said_to_be_why() -> None:
    model = Twice(nn.InstanceNorm2d(12, affine=True))
    method = pt.ContinuousSparsification(target=0.3, group="channel", exclude=("two", "head"))
    with pytest.raises(ConfigError, match=r"or has two names \(again is between again\); use group"):
        pt.compress(model, method, steps=1, example=model.x)
    alone = Net(nn.GroupNorm(1, 12))
    with pytest.raises(
        ConfigError,
        match=r"group norm of one group, recurrence\), is excluded, has outputs .* zero, or has two names; use",
    ):
        pt.compress(alone, method, steps=1, example=alone.x)


def test_names_of_what_has_several() -> None:
    inner = nn.Sequential(nn.ReLU())
    model = nn.ModuleDict({"a": inner, "b": inner, "c": nn.ReLU(), "d": inner[0]})
    assert doubles(model) == {"a": "b", "b": "a", "a.0": "b.0", "b.0": "a.0", "d": "a.0"}
