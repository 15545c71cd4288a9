"""What finding coupled channels costs, counted in forward passes of the network and not in seconds."""

import pytest
import torch
from torch import Tensor, nn

from paretorch.core.channels.couple import couple

WIDTH = 6


class Chain(nn.Module):
    """A chain of convolutions; one of them, at most, gives a width that the forward pass expects."""

    forwards = 0

    def __init__(self, depth: int, written: int | None = None) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, WIDTH, 1), nn.Linear(WIDTH, 4)
        self.layers = nn.ModuleList(nn.Conv2d(WIDTH, WIDTH, 1) for _ in range(depth))
        self.written = written

    def forward(self, x: Tensor) -> Tensor:
        type(self).forwards += 1
        x = torch.relu(self.stem(x))
        for index, layer in enumerate(self.layers):
            x = torch.relu(layer(x))
            if index == self.written and x.shape[1] != WIDTH:
                raise ValueError("a width that is not expected")
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


def _forwards(depth: int, written: int | None) -> int:
    """The forward passes that it takes to find what can go: everything but what is written."""
    torch.manual_seed(0)
    model = Chain(depth, written)
    chosen = {name for name, parameter in model.named_parameters() if parameter.dim() > 1}
    Chain.forwards = 0
    coupling = couple(model, torch.randn(1, 3, 2, 2), chosen, "this")
    lost = {cut.module for cut in coupling.cuts if cut.side == "out"}
    assert lost == {"stem", *(f"layers.{index}" for index in range(depth) if index != written)}
    return Chain.forwards


def test_what_holds_takes_as_many_forward_passes_at_every_depth() -> None:
    assert _forwards(4, None) == _forwards(32, None) <= 12


@pytest.mark.parametrize("written", [0, 7])
def test_one_layer_that_cannot_lose_channels_is_found_by_halves(written: int) -> None:
    few, many = _forwards(8, written), _forwards(64, written)
    # Three times twice the depth: three more rounds of two halves, of four choices, of two networks.
    assert many <= few + 3 * 2 * 4 * 2


def test_every_layer_that_cannot_lose_channels_is_found() -> None:
    class Several(Chain):
        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.stem(x))
            for index, layer in enumerate(self.layers):
                x = torch.relu(layer(x))
                if index in (1, 2, 6):
                    assert x.shape[1] == WIDTH
            logits: Tensor = self.head(x.mean((2, 3)))
            return logits

    torch.manual_seed(0)
    model = Several(9)
    chosen = {name for name, parameter in model.named_parameters() if parameter.dim() > 1}
    coupling = couple(model, torch.randn(1, 3, 2, 2), chosen, "this")
    lost = {cut.module for cut in coupling.cuts if cut.side == "out"}
    assert lost == {"stem", *(f"layers.{index}" for index in (0, 3, 4, 5, 7, 8))}


def test_the_share_of_a_chain_is_kept_rows_times_kept_columns() -> None:
    depth, half = 16, WIDTH // 2
    model = Chain(depth)
    chosen = {name for name, parameter in model.named_parameters() if parameter.dim() > 1}
    coupling = couple(model, torch.randn(1, 3, 2, 2), chosen, "this")
    assert coupling.count == WIDTH * (depth + 1)
    left = 3 * half + depth * half**2 + half * 4  # of the ends one side goes, of the others both
    total = 3 * WIDTH + depth * WIDTH**2 + WIDTH * 4
    every_other = torch.arange(coupling.count) % 2 == 0
    assert float(coupling.share(every_other, "weights")) == pytest.approx(left / total, rel=1e-5)
    # The same by a threshold: scores that are open are above it.
    shares = coupling.shares_above(every_other.float(), torch.tensor([2.0, 0.5, 0.0]), "weights", 1)
    assert shares.tolist() == pytest.approx([0.0, left / total, 1.0], rel=1e-5)
