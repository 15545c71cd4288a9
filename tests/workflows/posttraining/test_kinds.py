"""Layers of other kinds: attention, recurrent, transposed, reused, half precision, pre-activation norms."""

import pytest
import torch
from torch import Tensor, nn

from paretorch.workflows.posttraining import post_train


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(12, 24, batch_first=True), nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0])


class Reused(nn.Module):
    """One layer that runs twice, and weights that never run."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.idle, self.head = nn.Linear(12, 12), nn.Linear(12, 30), nn.Linear(12, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.layer(x).relu()).relu())


class PreActivation(nn.Module):
    """Batch norms that read a sum, not one layer's output."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = (nn.Conv1d(12, 12, 3, padding=1) for _ in range(3))
        self.norm = nn.BatchNorm1d(12)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2)
        return self.head(self.norm(self.first(x) + self.second(x)).relu())


def build(kind: str) -> nn.Module:
    torch.manual_seed(0)
    networks = {
        "attention": lambda: nn.Sequential(nn.TransformerEncoderLayer(12, 2, 32, batch_first=True), nn.Linear(12, 6)),
        "recurrent": Recurrent,
        "transposed": lambda: nn.Sequential(nn.ConvTranspose1d(8, 20, 3, stride=2), nn.ReLU(), nn.Conv1d(20, 6, 3)),
        "reused": Reused,
        "half": lambda: nn.Sequential(nn.Linear(12, 60), nn.ReLU(), nn.Linear(60, 6)).bfloat16(),
        "pre-activation": PreActivation,
    }
    return networks[kind]()


@pytest.mark.parametrize("kind", ["attention", "recurrent", "transposed", "reused", "half", "pre-activation"])
def test_every_weight_is_rounded_and_the_outputs_stay_near(kind: str) -> None:
    model = build(kind).eval()
    dtype = next(model.parameters()).dtype
    batches = [torch.randn(16, 8, 12, dtype=dtype, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    count = sum(value.numel() for value in model.parameters())
    found = post_train(model, batches, budget=800 + count * 6 // 8)
    assert found.steps.keys() == {name for name, value in model.named_parameters() if value.dim() > 1}
    assert found.size <= 800 + count * 6 // 8
    with torch.no_grad():
        ours, dense = found.model(batches[0]).float(), model(batches[0]).float()
    assert (ours - dense).square().mean() < 0.01 * dense.square().mean()
    if kind == "pre-activation":
        assert not torch.equal(found.model.norm.running_mean, model.norm.running_mean)


def test_conv1d_of_gpt2() -> None:
    conv1d = pytest.importorskip("transformers.pytorch_utils").Conv1D
    torch.manual_seed(0)
    model = nn.Sequential(conv1d(40, 12), nn.ReLU(), conv1d(6, 40)).eval()
    batches = [torch.randn(32, 12) for _ in range(4)]
    found = post_train(model, batches, budget=1_100)
    assert found.size <= 1_100
    weight, steps = found.model[0].weight, found.steps["0.weight"]
    assert torch.equal((weight / steps).round() * steps, weight)
