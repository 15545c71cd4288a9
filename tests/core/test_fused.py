"""The compiled step of the plan takes the steps of the plain one."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import paretorch as pt
from paretorch.core import plan as plans
from paretorch.core.step import fused
from paretorch.methods.precision.rivals import Uniform
from paretorch.methods.sharing import soft
from paretorch.methods.sparsity.rivals import DNW, ST3, GradualMagnitude

_METHODS = {
    "sparsity": [pt.ContinuousSparsification(target=0.8, penalty=1e-4)],
    "precision": [pt.SMOL(target_bits=2.0)],
    "both": [pt.ContinuousSparsification(target=0.5, final_temperature=50.0), pt.SMOL(target_bits=1.5)],
    "gradual": [GradualMagnitude(target=0.7, every=2)],
    "soft threshold": [ST3(target=0.7)],
    "wirings": [DNW(target=0.7)],
    "uniform": [Uniform(bits=2)],
    "sharing": [pt.SoftSharing(templates=2, drops=(0.3,), recurrence=0.01)],
}
_DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def _steps(model: nn.Module, plan: pt.Plan, count: int) -> None:
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.05)
    generator = torch.Generator().manual_seed(3)
    for _ in range(count):
        x = torch.randn(8, 6, generator=generator).to(_DEVICE)
        model(x).square().mean().backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("name", _METHODS)
def test_the_compiled_step_is_the_plain_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    first = [nn.Linear(6, 6), nn.Linear(6, 6)] if name == "sharing" else []
    model = nn.Sequential(*first, nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 4)).to(_DEVICE)
    other = copy.deepcopy(model)
    monkeypatch.setattr(plans, "on_one_gpu", lambda _: False)
    _steps(model, pt.compress(model, *_METHODS[name], steps=12), 8)
    taken = []
    call = fused.FusedStep.__call__
    monkeypatch.setattr(fused.FusedStep, "__call__", lambda *args: taken.append(call(*args)) or taken[-1])
    for module in (plans, soft):
        monkeypatch.setattr(module, "on_one_gpu", lambda _: True)
    _steps(other, pt.compress(other, *_METHODS[name], steps=12), 8)
    trained = any(method.decisions_optimizer(list(other.parameters()), 12) for method in _METHODS[name])
    assert taken == [True] * (7 if trained else 8)  # the first step makes the optimizers' state
    state = other.state_dict()
    for key, value in model.state_dict().items():
        if value.is_floating_point():
            # Precisions travel by several units under a price that is an exponential: rounding errors grow on the way.
            near = 3e-4 if key.endswith("precision.s") else 3e-5
            assert torch.allclose(value, state[key], rtol=1e-4, atol=near), key


@pytest.mark.parametrize("small", [True, False])
def test_the_layers_of_large_networks_share_kernels_only_where_samples_are_read(
    small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 4).to(_DEVICE)
    plan = pt.compress(model, *_METHODS["precision"], steps=12)
    shared = {}

    def compiled(function: Callable[..., None], **options: Any) -> Callable[..., None]:
        shared[function.__name__.rpartition("_")[0]] = options["options"].get("combo_kernels", False)
        return function

    monkeypatch.setattr(plans, "on_one_gpu", lambda _: True)
    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr(fused, "_SMALL", 24 if small else 23)
    _steps(model, plan, 2)
    assert shared == {"_update": small, "advance": True}


def test_a_step_that_cannot_be_compiled_is_taken_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise torch._dynamo.exc.TorchDynamoException("no compiler")

    torch.manual_seed(0)
    model = nn.Linear(6, 4).to(_DEVICE)
    plan = pt.compress(model, *_METHODS["sparsity"], steps=12)
    monkeypatch.setattr(plans, "on_one_gpu", lambda _: True)
    monkeypatch.setattr(torch, "compile", lambda *_, **__: fails)
    with pytest.warns(UserWarning, match=r"torch\.compile fails here") as heard:
        _steps(model, plan, 4)
    assert heard[0].filename == __file__
    assert plan.metrics()["step"] == 4


def test_many_plans_in_one_process_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler gives up on a function that it has compiled eight times."""
    compiled = torch.compile
    monkeypatch.setattr(plans, "on_one_gpu", lambda _: True)
    monkeypatch.setattr(torch, "compile", lambda one, dynamic, options: compiled(one, dynamic=dynamic, backend="eager"))
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        for _ in range(10):
            model = nn.Linear(6, 4).to(_DEVICE)
            plan = pt.compress(model, *_METHODS["sparsity"], steps=12)
            _steps(model, plan, 3)
            assert plan.metrics()["step"] == 3
