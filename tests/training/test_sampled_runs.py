"""K samples of the noise a step: a batch in K parts, each with its own; as a loop written by hand, compiled, resumed."""

import functools
from typing import Any

import pytest
import torch
from torch import nn

from paretorch import compress
from paretorch.errors import ConfigError
from paretorch.methods.precision.noisy import noise_samples
from paretorch.methods.precision.smol import SMOL
from paretorch.training import Runtime, optimizers
from paretorch.training.recipe import OptimizerRecipe
from paretorch.training.recipe_values import changed, recipe_from
from paretorch.training.run import prepare
from paretorch.training.stepper import Stepper

from .blobs import Blobs, Make, ends_where_it_does, small_model

_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
_RECIPE = recipe_from(
    {
        "epochs": 3,
        "finetune": 2,
        "data.batch": 4,
        "optimizer.lr": 0.05,
        "schedule.finetune_lr": 0.02,
        "compression.bits": 3.0,
        "compression.precision_options": {"samples": 2},
    }
)


class _Smooth(Blobs):
    """The blobs without a look at values on the host, on any device."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.points, self.labels = self.points.to(device), self.labels.to(device)

    def loss(self, model: nn.Module, batch: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        logits = model(batch[0])
        accuracy = (logits.argmax(1) == batch[1]).float().mean()
        return nn.functional.cross_entropy(logits, batch[1]), (accuracy,)


def _model(device: str) -> nn.Module:
    model = small_model()
    model[3] = nn.Identity()  # type: ignore[operator]
    return model.to(device)


def _steps(device: str = "cpu", *, captured: bool = False, compile: bool = False) -> dict[str, Any]:
    """Twelve steps with two samples each."""
    model, task = _model(device), _Smooth(device)
    plan = compress(model, SMOL(target_bits=3.0, init_bits=4.0), steps=12)
    rate = torch.tensor(0.05, device=device) if captured else None
    made = optimizers.build(OptimizerRecipe(lr=0.05), plan.param_groups(), 0.05 if rate is None else rate)
    stepper = Stepper(model, task, made, plan, device=torch.device(device), rate=rate, compile=compile, samples=2)
    records = []
    for epoch in range(3):
        stepper.begin(task.epoch(epoch), [0.05] * 4)
        for step in range(4):
            stepper.step(step)
        records.append(stepper.record(4))
    return {"record": torch.cat(records), **{name: value.cpu() for name, value in model.state_dict().items()}}


def test_steps_are_those_of_a_loop_over_samples() -> None:
    model, task, losses = _model("cpu"), _Smooth("cpu"), []
    plan = compress(model, SMOL(target_bits=3.0, init_bits=4.0), steps=12)
    optimizer = optimizers.build(OptimizerRecipe(lr=0.05), plan.param_groups(), 0.05)
    for epoch in range(3):
        for points, labels in zip(*task.epoch(epoch), strict=True):
            each = []
            for k in noise_samples(model, 2):
                half = slice(2 * k, 2 * k + 2)
                each.append(nn.functional.cross_entropy(model(points[half]), labels[half]))
                (each[-1] / 2).backward()
            optimizer.step()
            plan.step()
            optimizer.zero_grad()
            losses.append(torch.stack(each).mean().item())
    found = _steps()
    assert found["record"][:, 0].tolist() == losses
    assert all(torch.equal(found[name], value) for name, value in model.state_dict().items())


def _agree(one: dict[str, Any], other: dict[str, Any], tolerance: float) -> None:
    for name in one:
        assert torch.allclose(one[name].double(), other[name].double(), rtol=tolerance, atol=tolerance), name


def test_compiled_steps_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    eager = _steps()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager", fullgraph=True))
    _agree(eager, _steps(compile=True), 1e-5)


@_GPU
@pytest.mark.parametrize("compile", [False, True])
def test_captured_steps_agree(compile: bool) -> None:
    _agree(_steps("cuda"), _steps("cuda", captured=True, compile=compile), 1e-3)


def test_a_run_samples_until_rounding_and_resumes(make: Make) -> None:
    whole = make(_RECIPE, name="whole")
    whole.run()
    assert whole.task.taken == 2 * 12 + 8  # type: ignore[attr-defined]
    plain = make(changed(_RECIPE, {"compression.precision_options": {}}), name="plain")
    plain.run()
    assert plain.folder.history()[0]["loss"] != whole.folder.history()[0]["loss"]
    ends_where_it_does(whole, make, _RECIPE)


@pytest.mark.parametrize("count", [0, 3, 64, 1.0, "2", True, None])
def test_counts_that_cannot_be_meant(count: object) -> None:
    with pytest.raises(ConfigError, match=r"precision_options\.samples is .*divides the batch of 4"):
        changed(_RECIPE, {"compression.precision_options": {"samples": count}})


def test_samples_without_noise(make: Make) -> None:
    with pytest.raises(ConfigError, match="learned precisions: set bits"):
        recipe_from({"data.batch": 4, "compression.sparsity": 0.5, "compression.precision_options": {"samples": 2}})
    with pytest.raises(ConfigError, match=r"precision_options: .*samples"):
        make(
            recipe_from(
                {
                    "epochs": 1,
                    "data.batch": 4,
                    "compression.bits": 2,
                    "compression.quantization": "lsq",
                    "compression.precision_options": {"samples": 2},
                }
            )
        )


def test_batches_that_cannot_be_split(monkeypatch: pytest.MonkeyPatch) -> None:
    class Whole(Blobs):
        splits = False

    monkeypatch.setattr("paretorch.training.run.choose", lambda *_: (Whole(), {}))
    with pytest.raises(ConfigError, match=r"samples splits batches, which those of ptb cannot be"):
        prepare(changed(_RECIPE, {"data.name": "ptb"}), Runtime(device="cpu"))
