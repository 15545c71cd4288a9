"""Far below one bit: the noise of weights that will be zero is held to what they lose, so that networks without norms train."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import paretorch as pt
from paretorch.core.step.noise import uniform
from tests.decisions import Gradients


def _noise(network: nn.Module) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, how far their noise goes as printed, and the noise they have, in units of its draws."""
    own = network.paretorch_weight.precision
    weight, spread = network.paretorch_weight.latent.detach(), own.scale * torch.sigmoid(own.decision.detach())
    draws = uniform(weight.shape, own.step, own.seed)
    return weight, spread.expand(weight.shape), (network.weight.detach() - weight) / draws  # type: ignore[operator]


@pytest.mark.parametrize("scale", ["auto", 0])
@pytest.mark.parametrize("group", ["weight", "channel", "layer"])
def test_what_will_be_zero_has_noise_of_its_own_size(group: str, scale: str | int) -> None:
    torch.manual_seed(0)
    network = nn.Linear(30, 20, bias=False)
    gradients = Gradients()
    options = {"target_bits": 0.3, "init_bits": 2.0, "zero_precision": True, "optimizer": gradients}
    plan = pt.compress(network, pt.SMOL(**options, group=group, scale=scale), steps=4)
    weight, spread, found = _noise(network)
    zero = weight.abs() <= 0.5 * spread
    assert bool(zero.any())
    torch.testing.assert_close(found, torch.where(zero, weight.abs(), spread), rtol=1e-4, atol=1e-5)
    network(torch.ones(1, 30)).sum().backward()
    torch.optim.SGD(plan.param_groups(), lr=0.1).step()
    plan.step()
    (gradient,) = gradients.found
    if group == "weight":
        assert not bool(gradient[zero].any())


@pytest.mark.parametrize(
    "options",
    [
        {"target_bits": 0.5, "zero_precision": True},
        {"target_bits": 1.7, "zero_precision": True},
        {"penalty": 1e-3, "zero_precision": True},
        {"target_bits": 1.7},
    ],
)
def test_elsewhere_noise_is_as_printed(options: dict[str, float]) -> None:
    torch.manual_seed(0)
    network = nn.Linear(30, 20, bias=False)
    pt.compress(network, pt.SMOL(init_bits=2.0, **options), steps=4)
    _, spread, found = _noise(network)
    torch.testing.assert_close(found, spread, rtol=1e-4, atol=1e-5)


class _Reader(nn.Module):
    """The next letter, by an LSTM without norms."""

    def __init__(self, letters: int, units: int) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(letters, units), nn.LSTM(units, units, batch_first=True)
        self.head = nn.Linear(units, letters)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(x))[0])


def _text() -> Tensor:
    """Eight words in random order, as columns of letters."""
    chosen = torch.randint(0, 8, (16, 24), generator=torch.Generator().manual_seed(0))
    words = torch.randint(0, 9, (8, 4), generator=torch.Generator().manual_seed(1))
    return words[chosen].flatten(1)


def test_an_lstm_without_norms_trains_at_a_quarter_of_a_bit() -> None:
    torch.manual_seed(0)
    network, text, steps = _Reader(9, 24), _text(), 300
    plan = pt.compress(network, pt.SMOL(target_bits=0.25, zero_precision=True), steps=steps)
    optimizer = torch.optim.Adam(plan.param_groups(), lr=0.02)
    for step in range(steps):
        chunk = text[:, (12 * step) % 72 :][:, :21]
        loss = F.cross_entropy(network(chunk[:, :-1]).flatten(0, 1), chunk[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
    assert loss.item() < 1.2, "a guess costs 2.2, and with noise as printed this costs 2.5"
