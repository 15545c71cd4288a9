"""Folds that are not exact: batch norm, estimated anew for what the layers now give."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from paretorch import SoftSharing, compress, fold, load
from paretorch.cli.app import app
from paretorch.training.recipe_values import recipe_from
from paretorch.training.runtime import Runtime
from paretorch.training.tasks.choose import choose
from paretorch.workflows.folding_curve import folding_curve

_DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


def network_of(device: str = "cpu") -> nn.Module:
    """Four convolutions of one shape, all different, whose batch norms know what they give."""
    torch.manual_seed(0)
    body = [layer for _ in range(4) for layer in (nn.Conv2d(5, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU())]
    network = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), *body, nn.Flatten(), nn.Linear(80, 3)).to(device)
    compress(network, SoftSharing(), steps=2)
    for one in batches(device):
        network.train()(one)
    return network.eval()


def batches(device: str = "cpu") -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(16, 3, 4, 4, generator=generator).to(device) for _ in range(3)]


def statistics(network: nn.Module) -> list[Tensor]:
    return [module.running_mean.clone() for module in network.modules() if isinstance(module, nn.BatchNorm2d)]


@pytest.mark.parametrize("device", _DEVICES)
def test_statistics_are_those_of_the_folded_network(device: str) -> None:
    network, own = network_of(device), batches(device)
    before = statistics(network)
    kept = fold(network, layers=2)
    small = fold(network, layers=2, recalibrate=((x.cpu(), "a label") for x in own))
    assert all(torch.equal(one, other) for one, other in zip(statistics(network), before, strict=True)), "a copy"
    assert all(torch.equal(one, other) for one, other in zip(statistics(kept), before, strict=True))
    with torch.no_grad():  # the first norm by hand; of the second the inputs are what the first gives
        first = torch.stack([small[1](small[0](x)) for x in own])
    torch.testing.assert_close(small[2].running_mean, first.mean((0, 1, 3, 4)), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(small[5].running_mean, kept[5].running_mean)
    assert small[2].momentum == 0.1
    assert not small.training


def test_an_exact_fold_asks_for_no_batch() -> None:
    def never() -> Iterator[Tensor]:
        raise AssertionError("asked for a batch")
        yield

    network = network_of()
    small = fold(network, recalibrate=never())
    assert all(folding.exact for folding in small.paretorch_folding)
    assert all(torch.equal(one, other) for one, other in zip(statistics(small), statistics(network), strict=True))


def test_every_point_of_a_curve_has_its_own() -> None:
    def measure(model: nn.Module) -> float:
        return float(statistics(model)[1].sum())

    network = network_of()
    plain = [point.measured for point in folding_curve(network, measure)]
    anew = [point.measured for point in folding_curve(network, measure, None, batches())]
    assert len(set(plain)) == 1
    assert anew[0] == plain[0], "with all layers nothing has changed"
    assert len(set(anew)) == 4


def pare(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == code, result.output
    return result.output


def test_pare_fold_takes_batches_of_the_run(tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    small = ["--network", "swrn-22-1-2", "--data", "digits", "--set", 'network_options={"channels": 1}']
    pare("train", *small, "--epochs", "1", "--device", "cpu", "--out", out)
    found = {}
    for words in (["0"], ["2"], ["3"]):
        told = pare("fold", out, "--layers", "3", "--device", "cpu", "--recalibrate", *words)
        assert "error up to" in told
        found[words[0]] = load(tmp_path / "run" / "folded.pare").stages[1][1].bn2.running_var
    assert not torch.allclose(found["0"], found["2"])
    assert not torch.equal(found["2"], found["3"])
    config = tmp_path / "run" / "config.json"
    config.write_text(config.read_text().replace('"digits"', '"cifar10"'))
    told = pare("fold", out, "--layers", "3", "--root", str(tmp_path / "nowhere"), code=1)
    assert "--recalibrate 0" in " ".join(told.split())
    pare("fold", out, "--layers", "3", "--root", str(tmp_path / "nowhere"), "--recalibrate", "0")


def test_inputs_of_shortest_paths_leave_the_phase_alone() -> None:
    data = {"size": 6, "count": 32, "test_count": 8, "limits": [2, 4]}
    recipe = recipe_from(
        {
            "network": "shortest-paths-cnn",
            "data.name": "shortest-paths",
            "data.options": data,
            "epochs": 2,
            "data.batch": 16,
        }
    )
    task, _ = choose(recipe, Runtime(device="cpu"), torch.device("cpu"))
    model = nn.Sequential(nn.Conv2d(task.example().shape[1], 1, 1), nn.Flatten(0, 1))
    task.epoch(1)
    phase = task.evaluate(model)
    (early, *_), (late, *_) = task.inputs(0, 2), task.inputs(1, 2)
    assert early.shape == late.shape
    assert not torch.equal(early, late), "of another phase"
    assert task.evaluate(model) == phase
    assert phase["stage"] == 1
