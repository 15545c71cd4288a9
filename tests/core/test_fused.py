"""The kernels for GPUs against torch operations: on a GPU if there is one, else in Triton's interpreter."""

import os

import pytest
import torch
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported
pytest.importorskip("triton")

import paretorch as pt  # noqa: E402
from paretorch.core.attach import fused  # noqa: E402

SPARSE, BITS = pt.ContinuousSparsification, pt.SMOL
CASES = {
    "masks": lambda: (SPARSE(target=0.8, start="uniform"),),
    "masks by saliency": lambda: (SPARSE(target=0.8, start="saliency"),),
    "masks by channel": lambda: (SPARSE(target=0.5, start="uniform", group="channel"),),
    "masks by layer": lambda: (SPARSE(target=0.5, start="uniform", group="layer"),),
    "one mask for the network": lambda: (SPARSE(penalty=1e-3, start="uniform", group="network"),),
    "masks as printed": lambda: (SPARSE.as_printed(-0.1),),
    "another gate by channel": lambda: (SPARSE(target=0.5, start="saliency", gate="arctan", group="channel"),),
    "noise": lambda: (BITS(target_bits=2.0),),
    "noise by channel": lambda: (BITS(target_bits=2.0, group="channel", scale="auto"),),
    "steps by channel": lambda: (BITS(target_bits=3.0, group="channel"),),
    "steps by block": lambda: (BITS(target_bits=3.0, group=(1, 3)),),
    "masks and noise": lambda: (SPARSE(target=0.8), BITS(target_bits=1.0)),
    "masks by channel and noise": lambda: (SPARSE(target=0.5, group="channel"), BITS(target_bits=1.0)),
    "masks and steps": lambda: (SPARSE(target=0.5), BITS(target_bits=2.0, group="channel")),
    "coupled channels": lambda: (SPARSE(target=0.5, group="channel"),),
    "bits at a price": lambda: (BITS(penalty=1e-4),),
}


def network(last: bool) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 9, 3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(9, 6),
        nn.Linear(6, 50),
    ).to(DEVICE)
    return model.to(memory_format=torch.channels_last) if last else model


def train(case: str, last: bool, dtype: torch.dtype = torch.float32) -> tuple[dict[str, torch.Tensor], list[float]]:
    """A few steps of search and fine-tuning, and what became of the network."""
    model = network(last).to(dtype)
    x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1)).to(DEVICE, dtype)
    example = x[:1] if case == "coupled channels" else None
    plan = pt.compress(model, *CASES[case](), steps=8, example=example)
    optimizer = torch.optim.SGD(plan.param_groups(weight_decay=1e-3), lr=0.05, momentum=0.9)
    losses = []
    for step in range(12):
        loss = nn.functional.cross_entropy(model(x).float(), torch.arange(4, device=DEVICE))
        losses.append(float(loss))
        loss.backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
        if step == 7:
            plan.harden(optimizer)
    return {name: value.detach().clone() for name, value in model.state_dict().items()}, losses


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch):
    """Segments so short that every path is taken."""
    monkeypatch.setattr(fused, "SEGMENT", 64)
    monkeypatch.setattr(fused, "PROGRAMS", 4)
    monkeypatch.setattr(fused, "MANY", 2)
    monkeypatch.setattr(fused, "BLOCK", 64)
    monkeypatch.setattr(fused, "SHORT", 16)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("case", CASES)
def test_same_as_torch_operations(case, last, monkeypatch) -> None:
    monkeypatch.setattr(fused, "runs_on", lambda device: False)
    expected, expected_losses = train(case, last)
    taken = []
    original = fused.FusedBatch.pull
    monkeypatch.setattr(fused.FusedBatch, "pull", lambda *args: taken.append(1) or original(*args))
    monkeypatch.setattr(fused, "runs_on", lambda device: True)
    found, losses = train(case, last)
    assert taken, "the kernels did not run"
    # The first steps to the last digits; later a steep gate makes much of them.
    assert losses[:5] == pytest.approx(expected_losses[:5], rel=5e-5)
    assert losses == pytest.approx(expected_losses, rel=2e-2)
    for name, value in expected.items():
        near = (found[name].float() - value.float()).abs() <= 0.02 * value.float().abs() + 0.01
        assert near.float().mean() > 0.9, name


@pytest.mark.filterwarnings("ignore")
def test_weights_that_moved(monkeypatch) -> None:
    monkeypatch.setattr(fused, "runs_on", lambda device: True)
    model = network(False)
    plan = pt.compress(model, SPARSE(target=0.5, start="uniform"), steps=8)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.1)
    before = model[0].weight.data
    model[0].weight.data = before.clone()
    kept = before.clone()
    model(torch.randn(4, 3, 8, 8, device=DEVICE)).square().mean().backward()
    optimizer.step()
    plan.step()
    assert torch.equal(before, kept)
    assert not torch.equal(model[0].weight.detach(), kept)


@pytest.mark.filterwarnings("ignore")
def test_weights_of_half_precision(monkeypatch) -> None:
    monkeypatch.setattr(fused, "runs_on", lambda device: False)
    _, expected = train("masks", False, torch.bfloat16)
    monkeypatch.setattr(fused, "runs_on", lambda device: True)
    _, found = train("masks", False, torch.bfloat16)
    assert found[:5] == pytest.approx(
        expected[:5], rel=0.05
    )  # torch computes masks of eight binary digits, the kernels of 24
