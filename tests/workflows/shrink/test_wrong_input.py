"""What cannot work raises one clear sentence, and the model is as before."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import paretorch as pt
from paretorch.errors import ConfigError, DataError, PareError
from tests.workflows.shrink.networks import images


def _network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 10)).train()


def _with_nan() -> list[Tensor]:
    batches = images(4)
    batches[2][0, 0, 0, 0] = torch.nan
    return batches


class _Infinite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(192, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1)) / (x.flatten(1).sum(1, keepdim=True) * 0)


class _Integers(_Infinite):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1)).argmax(1)


class _Changing(_Infinite):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(x.flatten(1))[:, : 3 + self.calls % 3]


_WRONG: dict[str, tuple[Callable[[], Any], dict[str, Any], type[PareError], str]] = {
    "empty": (list, {}, DataError, "no batch"),
    "one tensor": (lambda: images(1)[0], {}, ConfigError, "not one Tensor"),
    "a number": (lambda: 3, {}, ConfigError, "not one int"),
    "NaN": (_with_nan, {}, DataError, "Batch 2 holds NaN"),
    "wrong shape": (lambda: [torch.zeros(4, 7)], {}, ConfigError, "does not run on the first batch"),
    "ends early": (lambda: iter(images(5)), {"steps": 20}, DataError, "batches ended after 5"),
    "small budget": (lambda: images(4), {"budget": 50}, ConfigError, "allow at least"),
    "strange budget": (lambda: images(4), {"budget": "4 apples"}, ConfigError, "is not a size"),
    "steps": (lambda: images(4), {"steps": -1}, ConfigError, "steps=-1"),
    "half steps": (lambda: images(4), {"steps": 1.5}, ConfigError, "steps=1.5"),
    "progress": (lambda: images(4), {"progress": "loud"}, ConfigError, "progress is 'loud'"),
}


@pytest.mark.parametrize("name", _WRONG)
def test_wrong_arguments_raise_one_sentence(name: str) -> None:
    make, options, kind, words = _WRONG[name]
    model = _network()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(kind, match=words) as raised:
        pt.shrink(model, make(), **{"budget": "3 kB", "steps": 0, **options})
    assert "\n" not in str(raised.value)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert model.training
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_something_else_than_a_module_raises() -> None:
    with pytest.raises(ConfigError, match="takes a module, not dict"):
        pt.shrink({}, images(2), budget="3 kB")  # type: ignore[arg-type]


def test_a_model_that_is_being_compressed_raises() -> None:
    model = _network()
    pt.compress(model, pt.SMOL(group="layer", target_bits=4.0), steps=3)
    with pytest.raises(ConfigError, match="still being compressed"):
        pt.shrink(model, images(2), budget="3 kB")


def test_outputs_that_are_not_finite_raise() -> None:
    with pytest.raises(DataError, match="NaN or infinity for batch 0"):
        pt.shrink(_Infinite(), images(3), budget="3 kB", steps=0)


def test_outputs_without_numbers_raise() -> None:
    with pytest.raises(ConfigError, match="no floating-point tensor"):
        pt.shrink(_Integers(), images(3), budget="3 kB", steps=0)


def test_outputs_that_change_their_shape_raise() -> None:
    with pytest.raises(PareError, match=r"do not match|size"):
        pt.shrink(_Changing(), images(3), budget="3 kB", steps=2)


def test_the_least_possible_budget_is_named_and_works() -> None:
    with pytest.raises(ConfigError, match=r"allow at least (\d+)") as raised:
        pt.shrink(_network(), images(4), budget=50, steps=0)
    least = int(str(raised.value).rpartition(" ")[2])
    small = pt.shrink(_network(), images(4), budget=2 * least, steps=0)
    assert isinstance(small, nn.Sequential)
