"""Large weights are computed in runs of rows, with little memory beside the weights, and with the same results."""

import copy
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import paretorch as pt
from paretorch.core.rounding import keep_best
from paretorch.support import arithmetic

CASES = {
    "cs": lambda: [pt.ContinuousSparsification(target=0.8, start="uniform")],
    # Steeper gates make much of the order of sums.
    "saliency": lambda: [pt.ContinuousSparsification(target=0.8, start="saliency", final_temperature=2.0)],
    "cs channel": lambda: [pt.ContinuousSparsification(target=0.5, group="channel")],
    "smol": lambda: [pt.SMOL(target_bits=3.0)],
    "smol zeros": lambda: [pt.SMOL(target_bits=0.4, zero_precision=True)],
    "smol block": lambda: [pt.SMOL(target_bits=3.0, group=(1, 8))],
    "smol channel": lambda: [pt.SMOL(target_bits=3.0, group="channel")],
    "both": lambda: [pt.ContinuousSparsification(target=0.5, start="uniform"), pt.SMOL(target_bits=2.0)],
    "padding": lambda: [pt.SMOL(target_bits=3.0, include="*")],
}


def _network(case: str) -> nn.Module:
    torch.manual_seed(0)
    if case == "padding":
        return nn.Sequential(nn.Embedding(48, 16, padding_idx=20), nn.Linear(16, 8))
    return nn.Sequential(nn.Linear(24, 32), nn.Linear(32, 40), nn.Linear(40, 8))


def _trained(case: str, steps: int = 4) -> dict[str, Tensor]:
    model = _network(case)
    plan = pt.compress(model, *CASES[case](), steps=steps)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.05, momentum=0.9)
    x = torch.arange(48) if case == "padding" else torch.randn(16, 24, generator=torch.Generator().manual_seed(1))
    for _ in range(steps):
        model(x).square().mean().backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
    state = copy.deepcopy(model.state_dict())
    plan.harden(optimizer)
    return {**{f"soft {name}": one for name, one in state.items()}, **plan.finalize().state_dict()}


@pytest.mark.parametrize("case", CASES)
def test_in_parts_it_is_what_it_is_in_one(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    whole = _trained(case)
    monkeypatch.setattr(arithmetic, "ON_CPU", 128)
    monkeypatch.setattr("paretorch.core.step.optimizers.ON_CPU", 128)
    parts = _trained(case)
    assert whole.keys() == parts.keys()
    for name, value in whole.items():
        if case == "saliency" and name.endswith(".s"):  # logarithms, of what is next to nothing perhaps
            torch.testing.assert_close(parts[name].exp(), value.exp(), rtol=1e-3, atol=1e-3)
        elif value.is_floating_point():
            torch.testing.assert_close(parts[name], value, rtol=1e-4, atol=1e-4)
        elif value.dtype == torch.int32 and value.dim() == 1:  # schedule values, kept as bits
            torch.testing.assert_close(parts[name].view(torch.float32), value.view(torch.float32), rtol=1e-4, atol=1e-5)
        else:
            assert torch.equal(parts[name], value), name


class _Peak(TorchDispatchMode):
    """The most bytes of tensors that were made inside and were alive together."""

    def __init__(self) -> None:
        super().__init__()
        self.living: dict[int, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        made = function(*args, **(kwargs or {}))
        for one in tree_leaves(made):
            if isinstance(one, Tensor):
                storage = one.untyped_storage()
                if storage._cdata not in self.living:
                    self.living[storage._cdata] = storage.nbytes()
                    weakref.finalize(storage, self.living.pop, storage._cdata, None)
        self.peak = max(self.peak, sum(self.living.values()))
        return made


# What a plan holds at the peak of a step, in weights: θ, and of each decision s, its gradient, and its optimizer's state.
HELD = {"cs": 4, "saliency": 4, "cs channel": 1, "smol": 5, "smol channel": 1}


@pytest.mark.parametrize("case", HELD)
def test_a_step_and_harden_take_little_beside_what_they_hold(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    monkeypatch.setattr(arithmetic, "ON_CPU", 2**15)
    monkeypatch.setattr("paretorch.core.step.optimizers.ON_CPU", 2**15)
    monkeypatch.setattr("paretorch.core.step.sample.WHOLE", 2**15)
    monkeypatch.setattr("paretorch.core.step.sample._SIZE", 2**12)
    torch.manual_seed(0)
    model, x = nn.Linear(2000, 1000, bias=False), torch.randn(2, 2000)
    size = 4 * model.weight.numel()
    with _Peak() as found:
        plan = pt.compress(model, *CASES[case](), steps=3)
        optimizer = torch.optim.SGD(plan.param_groups(), lr=0.05, momentum=0.9)
        for _ in range(3):
            model(x).square().mean().backward()
            optimizer.step()
            plan.step()
            optimizer.zero_grad()
        step, found.peak = found.peak, 0
        plan.harden(optimizer)
    dense = 3  # the weights, their gradients and their momentum
    assert step / size < dense + HELD[case] + 0.5
    assert found.peak <= step, "harden takes no more than a step"


@pytest.mark.parametrize("kept", [0, 1, 500, 1234, 2999, 3000])
@pytest.mark.parametrize("levels", [1, 3, 40, None])
def test_the_best_are_those_of_sorting(monkeypatch: pytest.MonkeyPatch, kept: int, levels: int | None) -> None:
    """With ties by index, zeros of either sign, and values of all magnitudes."""
    monkeypatch.setattr(arithmetic, "ON_CPU", 64)
    torch.manual_seed(0)
    scores = torch.randn(3000) * torch.exp2(torch.randint(-120, 120, (3000,)).float())
    if levels is not None:
        scores = torch.randint(-levels, levels + 1, (3000,)).float() * -0.5
    order = torch.sort(scores, descending=True, stable=True).indices[:kept]
    expected = torch.zeros(3000, dtype=torch.bool)
    expected[order] = True
    parts = [scores[:1000].view(10, 100), scores[1000:]]
    found = keep_best(parts, [torch.full_like(part, 4.0) for part in parts], 4.0 * kept)
    assert found[0].shape == (10, 100)
    assert torch.equal(torch.cat([part.flatten() for part in found]), expected)
