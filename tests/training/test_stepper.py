"""One step after another: eager, compiled, and replayed from a CUDA graph where there is a GPU."""

import contextlib
import copy
import functools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from paretorch.training import Runtime, optimizers, train
from paretorch.training.recipe import OptimizerRecipe
from paretorch.training.recipe_values import recipe_from
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
    # Without a bias before batch norm: its gradient is rounding error alone, which AdamW would make whole steps of.
    model[0].bias, model[3] = None, nn.Identity()  # type: ignore[operator,index,union-attr]
    recipe = recipe_from({"optimizer.name": optimizer, "optimizer.lr": 0.05, "optimizer.weight_decay": 1e-3})
    rate = torch.tensor(0.05, device=device) if captured else None
    made = optimizers.build(
        recipe.optimizer, optimizers.dense_groups(model, 1e-3), recipe.optimizer.lr if rate is None else rate
    )
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
    model[0].bias, model[3] = None, nn.Identity()  # type: ignore[operator,index,union-attr]
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


def test_a_task_may_give_views_of_its_own_data() -> None:
    """Such as a language model with one chunk an epoch: its offset moves, and the chunks overlap."""
    model, task = small_model(), _Smooth("cpu")
    points, labels = torch.randn(18, 3), torch.arange(18) % 2
    kept = points.clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    stepper = Stepper(model, task, optimizer, None, device=torch.device("cpu"))
    for start in (0, 2, 1):
        stepper.begin((points[start:][:16].view(4, 4, 3), labels[start:][:16].view(4, 4)), [0.05] * 4)
        stepper.step(0)
        assert torch.equal(points, kept)
        assert torch.equal(stepper._batches[0].flatten(0, 1), points[start:][:16])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
def test_tallies_may_have_any_dtype(dtype: torch.dtype) -> None:
    class Tallied(_Smooth):
        def loss(self, model: nn.Module, batch: tuple[torch.Tensor, ...]) -> Any:
            return super().loss(model, batch)[0], (torch.tensor(3, dtype=dtype),)

    model, task = small_model(), Tallied("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    stepper = Stepper(model, task, optimizer, None, device=torch.device("cpu"))
    stepper.begin(task.epoch(0), [0.05] * 4)
    stepper.step(0)
    assert stepper.record(1)[0, 1] == 3


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


class _Recorded:
    """A stand-in for a CUDA graph: what is captured is undone, and done again at each replay."""

    stepper: Stepper
    captures = 0
    replays = 0

    def replay(self) -> None:
        _Recorded.replays += 1
        self.stepper._update()


@contextlib.contextmanager
def _capturing(graph: _Recorded, stream: object) -> Iterator[None]:
    _Recorded.captures += 1
    before = copy.deepcopy((graph.stepper._model.state_dict(), graph.stepper._optimizer.state_dict()))
    position = graph.stepper._position.clone()
    yield
    graph.stepper._model.load_state_dict(before[0])
    optimizers.load_state(graph.stepper._optimizer, before[1])
    graph.stepper._position.copy_(position)


def test_the_rhythm_of_warm_up_capture_and_replay_takes_every_step_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = SimpleNamespace(wait_stream=lambda _: None)
    fakes = {
        "Stream": lambda _: stream,
        "current_stream": lambda: stream,
        "stream": lambda _: contextlib.nullcontext(),
        "synchronize": lambda: None,
        "CUDAGraph": _Recorded,
        "graph": _capturing,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    original = Stepper.__init__

    def remember(self: Stepper, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        _Recorded.stepper = self

    eager = _train("cpu", captured=False, compile=False)
    monkeypatch.setattr(Stepper, "__init__", remember)
    captured = _train("cpu", captured=True, compile=False)
    assert (_Recorded.captures, _Recorded.replays) == (2, 16 - 2 * 5)
    _assert_close(eager, captured, 1e-6)


@pytest.mark.parametrize("name", ["sgd", "adam", "avagrad"])
def test_loading_a_state_keeps_the_tensor_of_the_rate(name: str) -> None:
    rate = torch.tensor(0.05)
    groups = optimizers.dense_groups(small_model(), 0.0)
    recipe = recipe_from({"optimizer.name": name})
    made = optimizers.build(recipe.optimizer, groups, 0.05)
    optimizers.set_rate(made, rate)
    optimizers.load_state(made, optimizers.build(recipe.optimizer, groups, 0.3).state_dict())
    assert all(group["lr"] is rate for group in made.param_groups)


@_GPU
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "avagrad", "avagradw", "delayed-adam"])
@pytest.mark.parametrize("compile", [False, True])
def test_a_captured_step_agrees_with_an_eager_one(optimizer: str, compile: bool) -> None:
    eager = _train("cuda", captured=False, compile=False, optimizer=optimizer)
    captured = _train("cuda", captured=True, compile=compile, optimizer=optimizer)
    _assert_close(eager, captured, 1e-3)


@_GPU
@pytest.mark.parametrize("fast", [False, True])
def test_a_compressed_run_on_a_gpu_goes_through_all_phases_and_resumes(tmp_path: Path, fast: bool) -> None:
    recipe = recipe_from({"network": "digits-cnn", "data.name": "digits", "epochs": 10, "finetune": 4, "data.batch": 64, "optimizer.lr": 0.05, "compression.sparsity": 0.8, "compression.bits": 1.0, "compression.precision_options": {"scale": "auto"}})  # fmt: skip
    runtime = Runtime(device="cuda", compile=fast, graph=fast, checkpoint_steps=7, progress="quiet")
    result = train(recipe, tmp_path, runtime)
    assert result["test_accuracy"] > 0.9
    assert result["sparsity"] == pytest.approx(0.8, abs=0.01)
    (tmp_path / "result.json").unlink()
    assert train(recipe, tmp_path, runtime, resume=True)["test_accuracy"] == result["test_accuracy"]


@_GPU
@pytest.mark.parametrize("compile", [False, True])
def test_dropout_is_drawn_anew_in_every_replay(compile: bool) -> None:
    model, task, rate = small_model().cuda(), _Smooth("cuda"), torch.zeros((), device="cuda")
    made = optimizers.build(OptimizerRecipe(), optimizers.dense_groups(model, 0.0), rate)
    stepper = Stepper(model, task, made, None, device=torch.device("cuda"), rate=rate, compile=compile)
    points, labels = task.epoch(0)
    losses: list[float] = []
    for _ in range(4):  # one batch again and again, with a rate of nothing: only dropout can tell the losses apart
        stepper.begin((points[:1].expand_as(points).clone(), labels[:1].expand_as(labels).clone()), [0.0] * 4)
        for step in range(4):
            stepper.step(step)
        losses += stepper.record(4)[:, 0].tolist()
    assert len(set(losses[5:])) > 8
