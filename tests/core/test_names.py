"""Names of the user's own that look like the plan's, and layers that change under it."""

import pytest
import torch
from torch import Tensor, nn

from paretorch import ContinuousSparsification, compress
from paretorch.errors import ConfigError

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


class Named(nn.Module):
    """Keys with `parametrizations.`, `.original` and `paretorch_` in them, none of them torch's or ours."""

    def __init__(self) -> None:
        super().__init__()
        self.my_parametrizations = nn.ModuleDict({"weight": nn.Linear(4, 4), "original": nn.Linear(4, 4)})
        self.inner = nn.Sequential(nn.Linear(4, 4))
        self.inner.paretorch_head = nn.Linear(4, 2)
        self.register_parameter("original", nn.Parameter(torch.ones(4)))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.my_parametrizations.values():
            x = layer(x)
        return self.inner(x * self.original)


@pytest.mark.parametrize("exclude", [(), "inner.*"])
def test_any_names_will_do_below_the_root(exclude: tuple[str, ...] | str) -> None:
    torch.manual_seed(0)
    model = Named()
    names = list(model.state_dict())
    plan = compress(model, ContinuousSparsification(target=0.5, exclude=exclude), steps=1)
    plan.harden()
    dense, expected = plan.dense_state_dict(), model(X)
    assert list(dense) == names
    small = plan.finalize()
    assert torch.equal(small(X), expected)
    assert all(torch.equal(value, dense[key]) for key, value in small.state_dict().items())


@pytest.mark.parametrize("kind", ["buffer", "layer"])
def test_names_of_the_plan_are_not_taken_over(kind: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    if kind == "buffer":
        model.register_buffer("paretorch_step", torch.ones(3))
    else:
        model.add_module("paretorch_step", nn.Linear(4, 4))
    with pytest.raises(
        ConfigError, match="the model has 'paretorch_step': names that begin with 'paretorch_' are the plan's"
    ):
        compress(model, ContinuousSparsification(target=0.5), steps=1)


def test_a_layer_that_is_gone_is_named() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    plan = compress(model, ContinuousSparsification(target=0.5), steps=1)
    plan.harden()
    model[1] = nn.Linear(4, 2)
    with pytest.raises(ConfigError, match=r"1\.weight is no longer a weight of the model"):
        plan.finalize()
