"""One step after another: eager, compiled, and replayed from a CUDA graph where there is a GPU."""

import functools
from typing import Any

import pytest
import torch
from torch import nn

from paretorch.training import optimizers
from paretorch.training.recipe import Recipe
from paretorch.training.stepper import Stepper

from .blobs import Blobs, small_model

_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class _Smooth(Blobs):
    """The blobs without a look at values on the host, on any device."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.points, self.labels = self.points.to(device), self.labels.to(device)

    def loss(self, model: nn.Module, batch: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        points, labels = batch
        logits = model(points)
        accuracy = (logits.argmax(1) == labels).float().mean()
        return nn.functional.cross_entropy(logits, labels), (accuracy,)


def _train(device: str, *, captured: bool, compile: bool, optimizer: str = "sgd", epochs: int = 4) -> dict[str, Any]:
    model = small_model().to(device)
    model[3] = nn.Identity()  # type: ignore[operator]
    recipe = Recipe(optimizer=optimizer, lr=0.05, weight_decay=1e-3)
    rate = torch.tensor(0.05, device=device) if captured else None
    made = optimizers.build(recipe, optimizers.dense_groups(model, 1e-3), recipe.lr if rate is None else rate)
    task = _Smooth(device)
    stepper = Stepper(model, task, made, None, device=torch.device(device), rate=rate, compile=compile)
    records = []
    for epoch in range(epochs):
        stepper.begin(task.epoch(epoch), [0.05 / (1 + epoch + step / 4) for step in range(4)])
        for step in range(4):
            stepper.step(step)
        records.append(stepper.record(4))
        if epoch == 1:
            stepper.release()
    return {"record": torch.cat(records), **{name: value.cpu() for name, value in model.state_dict().items()}}


def _assert_close(one: dict[str, Any], other: dict[str, Any], tolerance: float) -> None:
    for name in one:
        assert torch.allclose(one[name].double(), other[name].double(), rtol=tolerance, atol=tolerance), name


def test_steps_are_those_of_a_plain_loop() -> None:
    model = small_model()
    model[3] = nn.Identity()  # type: ignore[operator]
    task, losses = _Smooth("cpu"), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3)
    for epoch in range(4):
        for step, batch in enumerate(zip(*task.epoch(epoch), strict=True)):
            for group in optimizer.param_groups:
                group["lr"] = 0.05 / (1 + epoch + step / 4)
            optimizer.zero_grad()
            loss, _ = task.loss(model, batch)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    found = _train("cpu", captured=False, compile=False)
    assert found["record"][:, 0].tolist() == losses
    assert all(torch.equal(found[name], value) for name, value in model.state_dict().items())


def test_compiled_steps_agree_with_eager_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    eager = _train("cpu", captured=False, compile=False)
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager", fullgraph=True))
    _assert_close(eager, _train("cpu", captured=False, compile=True), 1e-5)


def test_many_steppers_do_not_exhaust_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Any:
        compiled.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    for _ in range(12):
        _train("cpu", captured=False, compile=True, epochs=1)
    assert len(compiled) >= 12


@_GPU
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "avagrad", "avagradw", "delayed-adam"])
@pytest.mark.parametrize("compile", [False, True])
def test_a_captured_step_agrees_with_an_eager_one(optimizer: str, compile: bool) -> None:
    eager = _train("cuda", captured=False, compile=False, optimizer=optimizer)
    captured = _train("cuda", captured=True, compile=compile, optimizer=optimizer)
    _assert_close(eager, captured, 1e-3)
