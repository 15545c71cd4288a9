"""`pt.shrink`: within the budget, near the model, on networks and batches of several kinds; the model stays as it was."""

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import paretorch as pt
from paretorch.edits import edits_of
from paretorch.support.inputs import ModelCall
from paretorch.support.text import dense_bytes
from paretorch.workflows.shrink import shrink_network
from paretorch.workflows.shrink.objective import Objective
from paretorch.workflows.shrink.tuning import Tuner
from tests.workflows.shrink.networks import images, tokens, trained_convnet, trained_language_model


@pytest.fixture(scope="module")
def convnet() -> nn.Module:
    return trained_convnet()


@pytest.fixture(scope="module")
def language_model() -> nn.Module:
    return trained_language_model()


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def _same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def _file(model: nn.Module, path: Path) -> int:
    pt.save(model, path)
    return path.stat().st_size


@pytest.mark.parametrize("steps", [0, 12])
def test_the_file_is_within_the_budget_and_the_model_as_before(convnet: nn.Module, steps: int, tmp_path: Path) -> None:
    before, modes = _state(convnet), [module.training for module in convnet.modules()]
    small = pt.shrink(convnet, images(), budget="2.5 kB", steps=steps)
    assert 0.9 * 2500 <= _file(small, tmp_path / "small.pare") <= 2500
    assert _same(before, convnet.state_dict())
    assert modes == [module.training for module in convnet.modules()]
    assert not small.training
    assert type(small) is type(convnet)
    fresh = pt.load(tmp_path / "small.pare", into=copy.deepcopy(convnet))
    x = images(1, seed=9)[0]
    assert torch.equal(fresh.eval()(x), small(x))
    agree = (small(x).argmax(1) == copy.deepcopy(convnet).eval()(x).argmax(1)).float().mean()
    assert agree >= 0.7


def _compressed(convnet: nn.Module) -> nn.Module:
    """Half of the channels gone, and the rest on grids with exponents: a file of it lists both."""
    model = copy.deepcopy(convnet)
    methods = (pt.ContinuousSparsification(target=0.4, group="channel"), pt.SMOL(target_bits=4.0, scale=3))
    plan = pt.compress(model, *methods, steps=1, example=images(1)[0])
    plan.step()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan.harden()
    return plan.finalize()


@pytest.mark.parametrize("steps", [0, 4])
def test_a_network_that_was_compressed_before(convnet: nn.Module, steps: int, tmp_path: Path) -> None:
    before = _compressed(convnet)
    assert {edit.kind for edit in edits_of(before)} == {"scale", "keep_channels"}
    found = shrink_network(before, images(), budget="2.2 kB", steps=steps)
    assert _file(found.model, tmp_path / "small.pare") == found.record["bytes"] <= 2200
    assert {edit.kind for edit in edits_of(found.model)} == {"keep_channels"}  # the grids are others now
    fresh = pt.load(tmp_path / "small.pare", into=copy.deepcopy(convnet)).eval()
    x = images(1, seed=9)[0]
    assert torch.equal(fresh(x), found.model(x))


@pytest.mark.parametrize("steps", [0, 12])
def test_norms_are_folded_where_bytes_are_short(convnet: nn.Module, steps: int) -> None:
    tight = pt.shrink(convnet, images(), budget="2.2 kB", steps=steps)
    norms = [module for module in tight.modules() if isinstance(module, nn.BatchNorm2d)]
    assert norms
    assert not any(bool(norm.running_mean.any()) for norm in norms)  # two vectors are left
    agree = (
        tight(images(1, seed=9)[0]).argmax(1) == copy.deepcopy(convnet).eval()(images(1, seed=9)[0]).argmax(1)
    ).float()
    assert agree.mean() >= 0.6
    generous = pt.shrink(convnet, images(), budget="9 kB", steps=steps)
    assert any(bool(module.running_mean.any()) for module in generous.modules() if isinstance(module, nn.BatchNorm2d))


@pytest.mark.filterwarnings("ignore::paretorch.errors.PareWarning")
@pytest.mark.parametrize("rate", [1.0, 1e4])
def test_a_rate_that_is_too_high_is_lowered(convnet: nn.Module, rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tuner, "search", lambda *_: rate)
    found = shrink_network(convnet, images(), budget="2.5 kB", steps=30)
    assert found.record["bytes"] <= 2500
    if found.record["trained"]:
        assert found.record["rate"] < rate
    x = images(1, seed=9)[0]
    agree = (found.model(x).argmax(1) == copy.deepcopy(convnet).eval()(x).argmax(1)).float().mean()
    assert agree >= 0.7


def test_training_brings_the_network_nearer() -> None:
    model = trained_language_model()
    record = shrink_network(model, tokens(40), budget="4 kB", steps=60).record
    assert record["trained"]
    assert record["trained_distance"] < 0.9 * record["post_trained_distance"]
    assert record["bytes"] <= 4000


def test_training_that_does_not_help_is_not_kept(convnet: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    from paretorch.workflows.shrink import tuning

    monkeypatch.setattr(tuning, "RATES", (3.0,) * 6)
    rounded = pt.shrink(convnet, images(), budget="2.5 kB", steps=0)
    found = shrink_network(convnet, images(), budget="2.5 kB", steps=8)
    assert not found.record["trained"]
    assert _same(found.model.state_dict(), rounded.state_dict())


def test_a_network_that_no_rate_helps_is_rounded_only(convnet: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paretorch.workflows.shrink.tuning.Tuner.search", lambda *given: 0.0)
    record = shrink_network(convnet, images(), budget="2.5 kB", steps=8).record
    assert (record["trained"], record["trained_distance"], record["rate"]) == (False, None, 0.0)


def test_tied_weights_stay_tied(language_model: nn.Module, tmp_path: Path) -> None:
    small = pt.shrink(language_model, tokens(), budget="1/6", steps=6)
    assert small.get_parameter("head.weight") is small.get_parameter("embedding.weight")
    assert _file(small, tmp_path / "small.pare") <= dense_bytes(language_model) // 6
    assert all(parameter.requires_grad for parameter in small.parameters())


@pytest.fixture(scope="module")
def shrunk(language_model: nn.Module) -> dict[str, Tensor]:
    return pt.shrink(language_model, tokens(), budget="6 kB", steps=3).state_dict()


@pytest.mark.parametrize(
    "wrap",
    [lambda x: x, lambda x: (x, x), lambda x: {"input_ids": x}, lambda x: {"input_ids": x, "labels": x}],
    ids=["tensor", "tuple", "dict", "labels"],
)
def test_batches_of_any_kind_give_the_same(language_model: nn.Module, shrunk: dict[str, Tensor], wrap: Any) -> None:
    other = pt.shrink(language_model, [wrap(x) for x in tokens()], budget="6 kB", steps=3)
    assert _same(shrunk, other.state_dict())


def test_logits_without_a_name_are_taken_for_logits(language_model: nn.Module) -> None:
    class Bare(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.inner(x).logits
            return logits

    dense, calls = copy.deepcopy(language_model).eval(), [ModelCall((x,)) for x in tokens(2)]
    changed = copy.deepcopy(dense)
    with torch.no_grad():
        changed.get_parameter("embedding.weight").add_(0.01)
    named = Objective(dense, calls[0]).distance(changed, calls)
    bare = Objective(Bare(dense), calls[0]).distance(Bare(changed), calls)
    assert bare == named > 0
    record = shrink_network(Bare(language_model), tokens(), budget="6 kB", steps=3).record
    assert record["post_trained_distance"] < 0.01
    maps = nn.Conv1d(3, 4, 1)  # three dimensions of numbers are no logits
    assert not Objective(maps, ModelCall((torch.randn(2, 3, 5),))).compares_logits


def test_a_loader_an_iterator_and_a_list_give_the_same(convnet: nn.Module) -> None:
    x = torch.cat(images())
    loader = DataLoader(TensorDataset(x, torch.zeros(len(x))), batch_size=16)
    given = [pt.shrink(convnet, batches, budget=2500, steps=4) for batches in (images(), iter(images()), loader)]
    assert _same(given[0].state_dict(), given[1].state_dict())
    assert _same(given[0].state_dict(), given[2].state_dict())


def test_outputs_that_are_no_logits_are_matched() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
    batches = [torch.randn(32, 16) for _ in range(8)]
    record = shrink_network(model, batches, budget="1.5 kB", steps=10).record
    assert record["post_trained_distance"] < 0.1
    assert record["bytes"] <= 1500


def test_layers_that_are_frozen_stay_frozen(convnet: nn.Module) -> None:
    model = copy.deepcopy(convnet)
    model[0].requires_grad_(False)  # type: ignore[index]
    small = pt.shrink(model, images(), budget="2.5 kB", steps=2)
    assert [p.requires_grad for p in small.parameters()] == [p.requires_grad for p in model.parameters()]


def test_progress_names_what_is_expected(convnet: nn.Module, capsys: pytest.CaptureFixture[str]) -> None:
    pt.shrink(convnet, images(), budget="2.5 kB", steps=10, progress="plain")
    shown = capsys.readouterr().out
    for word in ("sensitivity", "learning rate", "training 10/10", "zeros", "bits", "kB"):
        assert word in shown
    pt.shrink(convnet, images(), budget="2.5 kB", steps=0, progress="quiet")
    assert not capsys.readouterr().out
