"""Devices without float64, such as Apple's GPUs: every method, from compress to finalize, with float64 forbidden for the model.

The device of these tests is the CPU, and what belongs to the model counts as lying on a device of that kind: parameters,
buffers, inputs, and all that is computed from them. A copy that is sent to the CPU by name is free again.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import paretorch as pt
from paretorch import SMOL, ContinuousSparsification, SMOLActivations, SoftSharing
from paretorch.core.method import Method
from paretorch.support import arithmetic
from paretorch.training import ImageClassification
from paretorch.zoo.data import Images
from tests.contract.cases import METHODS, MODELS, build
from tests.contract.loop import optimizer_of, train
from tests.contract.rivals import RIVALS

_REFUSED = "this device has no float64"


class _OnDevice(TorchDispatchMode):
    """Raises where an operation with a tensor of the device makes one of float64 there."""

    def __init__(self, tensors: list[Tensor]) -> None:
        super().__init__()
        self._storages: dict[int, Any] = {}  # kept, so that no address is used again
        for tensor in tensors:
            self._add(tensor)

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self._storages[storage._cdata] = storage

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        found = func(*args, **kwargs)
        to_cpu = func is torch.ops.aten._to_copy.default and str(kwargs.get("device")) == "cpu"
        if to_cpu or not any(tensor.untyped_storage()._cdata in self._storages for tensor in given):
            return found
        for tensor in pytree.tree_leaves(found):
            if isinstance(tensor, Tensor):
                if tensor.dtype in (torch.float64, torch.complex128):
                    raise TypeError(f"{_REFUSED}: {func}")
                self._add(tensor)
        return found


class _MadeThere(TorchFunctionMode):
    """Raises where a tensor of float64 is made on a device that is not named "cpu" outright, such as that of a parameter."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("dtype") is torch.float64 and isinstance(kwargs.get("device"), torch.device):
            raise TypeError(f"{_REFUSED}: {func}")
        return func(*args, **kwargs)


@contextmanager
def without_float64(model: nn.Module, *inputs: Tensor) -> Iterator[None]:
    with _OnDevice([*model.parameters(), *model.buffers(), *inputs]), _MadeThere():
        yield


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "has_float64", lambda device: False)


def _live(model: nn.Module, methods: tuple[Method, ...], x: Tensor, **options: Any) -> None:
    with without_float64(model, x):
        plan = pt.compress(model, *methods, steps=4, **options)
        optimizer = optimizer_of(plan)
        train(model, plan, optimizer, x, 4)
        plan.metrics()
        plan.harden(optimizer)
        train(model, plan, optimizer, x, 1)
        model.eval()
        before = model(x)
        torch.testing.assert_close(plan.finalize()(x), before, rtol=1e-4, atol=1e-5)


def test_the_stand_in_refuses_float64() -> None:
    layer, x = nn.Linear(2, 2), torch.ones(1, 2)
    made: list[Callable[[], Any]] = [
        lambda: layer.weight.double(),
        lambda: layer(x).to(torch.float64),
        lambda: layer.weight.sum(dtype=torch.float64),
        lambda: torch.zeros(2, dtype=torch.float64, device=layer.weight.device),
        lambda: layer.weight.detach().view(4).new_zeros(2, dtype=torch.float64),
    ]
    for make in made:
        with pytest.raises(TypeError, match=_REFUSED), without_float64(layer, x):
            make()
    with without_float64(layer, x):
        assert arithmetic.exact(layer.weight).dtype == torch.float64
        assert arithmetic.widened(layer.weight).dtype == torch.float32


# Labels of the undecided, and whatever else a method does at its ends, differ little between networks: one each.
@pytest.mark.filterwarnings("ignore::paretorch.errors.PareWarning")
@pytest.mark.parametrize("name", [*METHODS, *RIVALS])
def test_methods(name: str) -> None:
    model = "linear"
    _live(build(model), {**METHODS, **RIVALS}[name](), MODELS[model].batch(6))


def _alike() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(4)], nn.Linear(8, 3))


def _convolutional() -> nn.Module:
    torch.manual_seed(0)
    body = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU())
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(64, 3))


@pytest.mark.filterwarnings("ignore::paretorch.errors.PareWarning")
def test_channels_activations_budgets_and_sharing() -> None:
    x = torch.randn(4, 1, 8, 8)
    _live(_convolutional(), (ContinuousSparsification(target=0.5, group="channel"),), x, example=x)
    _live(_convolutional(), (SMOLActivations(target_bits=4.0),), x, example=x)
    _live(_convolutional(), (ContinuousSparsification(), SMOL()), x, budget=1600)
    _live(_alike(), (SoftSharing(templates=2, threshold=0.5),), torch.randn(6, 8))


def test_fold() -> None:
    model, x = _alike(), torch.randn(6, 8)
    with without_float64(model, x):
        plan = pt.compress(model, SoftSharing(templates=2), steps=2)
        train(model, plan, optimizer_of(plan), x, 2)
        pt.layer_similarity(model)
        pt.fold(model, layers=1)


@pytest.mark.filterwarnings("ignore::paretorch.errors.PareWarning")
def test_shrink() -> None:
    model, x = _convolutional(), torch.randn(8, 1, 8, 8)
    with without_float64(model, x):
        pt.shrink(model, [x, x], budget="1/3", steps=2)


@pytest.mark.parametrize("optimizer", [pt.AvaGrad, pt.AvaGradW, pt.DelayedAdam])
@pytest.mark.parametrize("foreach", [True, False])
def test_optimizers(optimizer: Any, foreach: bool) -> None:
    model, x = nn.Linear(6, 3), torch.randn(4, 6)
    with without_float64(model, x):
        made = optimizer(model.parameters(), lr=0.1, foreach=foreach, fused=False)
        for _ in range(3):
            model(x).square().mean().backward()
            made.step()
            made.zero_grad()


def test_evaluation_of_pare_train() -> None:
    pixels, labels = torch.randint(256, (20, 1, 8, 8), dtype=torch.uint8), torch.arange(20) % 3
    model = _convolutional()
    task = ImageClassification(Images("mine", (pixels, labels), (pixels, labels), 3, (0.5,), (0.25,)), batch=10)
    with without_float64(model, pixels):
        assert 0 <= task.evaluate(model.eval())["test_accuracy"] <= 1
