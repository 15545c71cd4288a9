"""Network Slimming by channels: one scale for a channel wherever it goes, the smallest removed."""

import pytest
import torch
from torch import Tensor, nn

from paretorch import Plan, compress
from paretorch.errors import ConfigError
from paretorch.methods.sparsity.rivals import NetworkSlimming
from tests.decisions import decisions

STEPS = 6


def _network() -> nn.Sequential:
    torch.manual_seed(2)
    layers = [nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(6 * 16, 4))


def _plan(network: nn.Module, target: float = 0.5, penalty: float = 1e-3) -> tuple[Plan, Tensor]:
    x = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    method = NetworkSlimming(target=target, group="channel", exclude="6", penalty=penalty, lr=0.05)
    return compress(network, method, steps=STEPS, example=x), x


def _train(network: nn.Module, plan: Plan, x: Tensor) -> None:
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.01)
    for _ in range(STEPS):
        network(x).square().mean().backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()


def _scales(plan: Plan) -> Tensor:
    (decision,) = decisions(plan.model)
    return decision.detach()


def test_a_scale_is_that_of_gamma_and_beta() -> None:
    network, plain = _network(), _network()
    plan, x = _plan(network)
    with torch.no_grad():
        _scales(plan).copy_(torch.linspace(0.5, 2.0, 14))
        s = torch.linspace(0.5, 2.0, 14)
        plain[1].weight *= s[:8]
        plain[1].bias *= s[:8]
        plain[3].weight *= s[8:].view(-1, 1, 1, 1)
        plain[3].bias *= s[8:]
    network.load_state_dict(network.state_dict())  # decisions of a state are those that the network computes with
    torch.testing.assert_close(network(x), plain(x), rtol=1e-4, atol=1e-4)


def test_a_channel_pays_for_each_weight_it_holds() -> None:
    network = _network()
    plan, _ = _plan(network, penalty=1e-2)
    plan.step()  # no gradient but that of the price
    sizes = torch.tensor([27.0 + 2] * 8 + [72.0 + 1] * 6)  # rows of the weight, and γ, β or a bias
    torch.testing.assert_close(_scales(plan), 1.0 - 0.05 * 1e-2 * sizes)


def test_the_smallest_scales_go_and_their_channels_are_removed() -> None:
    network = _network()
    plan, x = _plan(network)
    _train(network, plan, x)
    before = _scales(plan).abs().clone()
    plan.harden()
    gone = _scales(plan) == 0
    assert 0 < int(gone.sum()) < 14
    assert before[gone].max() <= before[~gone].min()
    found = plan.metrics()["sparsity"]
    expected = network.eval()(x)
    small = plan.finalize()
    torch.testing.assert_close(small(x), expected, rtol=1e-5, atol=1e-5)
    assert small[0].weight.shape[0] == small[1].num_features == small[3].weight.shape[1] == int((~gone[:8]).sum())
    left = small[0].weight.numel() + small[3].weight.numel()
    assert found == pytest.approx(1 - left / (8 * 27 + 6 * 72), abs=1e-5)
    assert found == pytest.approx(0.5, abs=0.08)


def test_every_layer_keeps_a_channel() -> None:
    with pytest.raises(ConfigError, match="every layer keeps a channel"):
        _plan(_network(), target=0.99)
