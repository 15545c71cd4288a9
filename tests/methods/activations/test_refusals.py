"""Wrong arguments say what is wrong and what would be right, before anything is touched."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paretorch import SMOLActivations, compress
from paretorch.errors import ConfigError
from paretorch.methods.precision.activations_fixed import FixedActivations
from paretorch.methods.precision.rivals import PACTActivations
from tests.methods.activations.nets import batch, build


def refused(model: nn.Module, method: Any, example: Any, match: str) -> None:
    keys = list(model.state_dict())
    with pytest.raises(ConfigError, match=match) as caught:
        compress(model, method, steps=5, example=example)
    assert "\n" not in str(caught.value)
    assert list(model.state_dict()) == keys
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("example", [None, torch.zeros(3), "x"])
def test_an_example_is_needed(example: Any) -> None:
    refused(build(), SMOLActivations(target_bits=3.0), example, "needs example=, a batch")


def test_an_example_that_does_not_run() -> None:
    refused(build(), SMOLActivations(target_bits=3.0), torch.zeros(2, 5), r"shape \(2, 5\) does not run")


def test_no_activation_module() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    refused(model, SMOLActivations(target_bits=3.0), torch.zeros(2, 2), "finds no activation module")
    refused(build(), SMOLActivations(target_bits=3.0, include="none*"), batch(), "finds no activation module")


def test_an_unknown_range_is_asked_for() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.GELU())
    refused(model, SMOLActivations(target_bits=3.0, include=nn.GELU), torch.zeros(2, 2), "range of 1, a GELU, is not")
    method = SMOLActivations(target_bits=3.0, include=nn.GELU, overrides={"1": {"bounds": (-0.2, 4.0)}})
    small = compress(model, method, steps=2, example=torch.zeros(2, 2)).finalize().eval()
    assert float(small(torch.full((1, 2), -9.0)).min()) >= -0.2001


class _Reused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.act = nn.Linear(2, 3), nn.Linear(3, 4), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.two(self.act(self.one(x))))


def test_one_module_with_two_shapes() -> None:
    refused(_Reused(), SMOLActivations(target_bits=3.0), torch.zeros(2, 2), "a module of its own at each place")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"target_bits": 0.5}, "below the 1 that every activation gets"),
        ({"target_bits": 3.0, "allowed_bits": (4, 8)}, "below the 4"),
        ({"target_bits": -1.0}, "target_bits"),
        ({"target_bits": 17.0}, "target_bits"),
        ({"zero_precision": True}, "zero_precision"),
        ({"scale": "auto"}, "scale"),
        ({"alpha": 0.0}, "alpha"),
        ({"alpha": "large"}, "alpha"),
        ({"alpha_decay": -1.0}, "alpha_decay"),
        ({"bounds": (1.0, 1.0)}, "below the second"),
        ({"bounds": (0.0, float("inf"))}, "finite"),
        ({"bounds": 3.0}, "lowest and the highest"),
        ({"group": "row"}, "group='row' is not known"),
        ({"overrides": {"relu": {"scale": 1}}}, "may differ by layer"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], match: str) -> None:
    refused(build(), SMOLActivations(**options), batch(), match)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"bits": 0}, "bits"),
        ({"bits": 17}, "bits"),
        ({"bits": 2.5}, "bits"),
        ({"top": 0.0}, "top"),
        ({"share": 2.0}, "share"),
        ({"group": "weight"}, "layer"),
        ({"include": nn.Tanh}, "ReLU and ReLU6 alone"),
    ],
)
def test_fixed_options_out_of_range(options: dict[str, Any], match: str) -> None:
    refused(build(), FixedActivations(**options), batch(), match)


@pytest.mark.parametrize(
    ("options", "match"), [({"bits": 0}, "bits"), ({"alpha": 0.0}, "alpha"), ({"alpha_decay": -1.0}, "decay")]
)
def test_pact_options_out_of_range(options: dict[str, Any], match: str) -> None:
    refused(build(), PACTActivations(**options), batch(), match)


def test_one_method_of_activations_at_a_time() -> None:
    with pytest.raises(ConfigError, match="two methods of one kind"):
        compress(build(), SMOLActivations(target_bits=3.0), FixedActivations(), steps=5, example=batch())


def test_a_budget_needs_weights() -> None:
    with pytest.raises(ConfigError, match="acts on weights"):
        compress(build(), SMOLActivations(target_bits=3.0), steps=5, example=batch(), budget=1000)


def test_inputs_of_another_size_may_come_where_groups_allow() -> None:
    network = build()
    compress(network, SMOLActivations(target_bits=3.0, group="channel"), steps=5, example=batch())
    assert network(torch.randn(2, 2, 6, 6)).shape == (2, 3)


def test_a_map_that_no_file_could_hold_is_refused_before_any_training() -> None:
    model = nn.Sequential(nn.Conv2d(1, 17, 1), nn.ReLU())
    example = torch.randn(1, 1, 512, 512)
    with pytest.raises(ConfigError, match=r'1 would have a map of 4,456,448 precisions, .* use group="channel"'):
        compress(model, SMOLActivations(target_bits=4.0), steps=4, example=example)
    compress(model, SMOLActivations(target_bits=4.0, group="channel"), steps=4, example=example)
