"""Folding: exact for collinear layers, honest about the rest, each weight once in memory and in the file."""

import copy
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from paretorch import Plan, compress, export_onnx
from paretorch.deploy import load, save, sizes
from paretorch.errors import ArtefactError, ConfigError
from paretorch.methods.sharing import Folding, SoftSharing, fold, layer_similarity
from paretorch.report import report
from paretorch.workflows.folding_curve import folding_curve
from tests.contract.loop import equal, optimizer_of, snapshot, train
from tests.decisions import relaxations
from tests.methods.sharing.cases import attach, batch, build


@pytest.fixture(autouse=True)
def _early_rounding_is_meant() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="harden at step")
        yield


def mixes(network: nn.Module) -> list[nn.Module]:
    return [module for module in network.modules() if type(module).__name__ == "Mix"]


def make_loop(network: nn.Module, scales: tuple[float, ...]) -> None:
    """Let the second half of the sharing layers be multiples of the first half."""
    own = mixes(network)
    half = len(own) // 2
    with torch.no_grad():
        for i, scale in enumerate(scales):
            own[half + i].s.copy_(scale * own[i].s)


class Normed(nn.Sequential):
    """Convolutions with a batch norm after each: signs and scales matter before and in it."""

    def __init__(self) -> None:
        body = [layer for _ in range(4) for layer in (nn.Conv2d(5, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU())]
        super().__init__(nn.Conv2d(3, 5, 3, padding=1), *body, nn.Flatten(), nn.Linear(80, 3))


@pytest.mark.parametrize("normed", [False, True])
def test_negative_multiples_fold_exactly(normed: bool) -> None:
    torch.manual_seed(0)
    network = Normed() if normed else build("linear")
    x = batch("conv" if normed else "linear")
    plan = compress(network, SoftSharing(templates=3), steps=8)
    train(network, plan, optimizer_of(plan), x, 4)
    make_loop(network, (-1.5, 2.0))
    before, state = network.eval()(x), snapshot(network)
    small = fold(network, threshold=0.999)
    torch.testing.assert_close(small(x), before, rtol=1e-5, atol=1e-5)
    (folding,) = small.paretorch_folding
    assert folding.runs == (1, 2, 1, 2)
    assert folding.scales == pytest.approx((1.0, 1.0, -1.5, 2.0), abs=1e-5)
    assert folding.error < 1e-5
    assert folding.words == "layers 1-2 run twice"
    assert str(folding).endswith("4 layers are 2; layers 1-2 run twice; exact")
    assert equal(snapshot(network), state)  # the network itself is as it was
    assert torch.equal(network(x), before)
    assert Plan.of(network) is plan
    shape = (5, 5, 3, 3) if normed else (8, 8)
    assert sum(p.shape == shape for p in small.parameters()) == 2


@pytest.mark.parametrize("model", ["conv", "lstm", "attention", "tied"])
def test_one_template_is_one_layer_in_a_loop(model: str, tmp_path: Path) -> None:
    network = build(model)
    plan = attach(network, "one")
    train(network, plan, optimizer_of(plan), batch(model), 4)
    before = network.eval()(batch(model))
    small = fold(network, threshold=0.99)
    for folding in small.paretorch_folding:
        assert set(folding.runs) == {1}
        assert folding.stored == 1
        assert "run" in folding.words
    torch.testing.assert_close(small(batch(model)), before, rtol=1e-5, atol=1e-5)
    save(small, tmp_path / "folded.pare")
    again = load(tmp_path / "folded.pare", into=build(model, seed=3)).eval()
    assert equal(snapshot(again), snapshot(small))
    assert torch.equal(again(batch(model)), small(batch(model)))
    copied = copy.deepcopy(small)
    assert torch.equal(copied(batch(model)), small(batch(model)))
    train_once(copied, batch(model))
    assert not torch.equal(copied(batch(model)), small(batch(model)))


def train_once(network: nn.Module, x: Tensor) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    network(x).square().mean().backward()
    optimizer.step()


def test_approximate_folds_say_their_error() -> None:
    network = build("linear")
    attach(network, "all")
    x = batch("linear")
    own = mixes(network)
    with torch.no_grad():
        own[1].s.copy_(own[0].s + 0.3 * own[1].s)
    small = fold(network, layers=3)
    (folding,) = small.paretorch_folding
    assert folding.runs == (1, 1, 2, 3)
    weights = [network.get_submodule(name.rpartition(".")[0]).weight for name in folding.layers]
    folded = [small.get_submodule(name.rpartition(".")[0]).weight for name in folding.layers]
    errors = [float(((a - b).norm() / a.norm()).detach()) for a, b in zip(weights, folded, strict=True)]
    assert folding.errors == pytest.approx(errors, abs=1e-5)
    assert 0.01 < folding.error < 0.3
    assert "error up to" in str(folding)
    assert not torch.allclose(small(x), network(x))
    both = torch.stack(weights[:2]).flatten(1)
    best = torch.linalg.svdvals(both.detach())[1]  # no pair of multiples of one weight is nearer
    found = torch.stack([w - f for w, f in zip(weights[:2], folded[:2], strict=True)]).norm()
    torch.testing.assert_close(found.detach(), best, rtol=1e-3, atol=1e-5)


def test_folding_what_was_hardened_loses_nothing() -> None:
    network = build("linear")
    plan = compress(network, SoftSharing(templates=2, threshold=0.3), steps=8)
    train(network, plan, optimizer_of(plan), batch("linear"), 8)
    plan.harden()
    expected = network.eval()(batch("linear"))
    (similarity,) = layer_similarity(network)
    small = fold(network, threshold=0.9999)
    (folding,) = small.paretorch_folding
    assert max(folding.runs) < 4
    assert folding.error < 1e-4
    assert (similarity.matrix > 0.9999).sum() > 4
    torch.testing.assert_close(small(batch("linear")), expected, rtol=1e-5, atol=1e-5)


def test_fewer_templates_than_layers_left_are_what_is_stored() -> None:
    network = build("linear")
    attach(network, "fewer")
    expected = network.eval()(batch("linear"))
    small = fold(network, threshold=1.0)
    (folding,) = small.paretorch_folding
    assert folding.stored == 2
    assert max(folding.runs) > 2
    torch.testing.assert_close(small(batch("linear")), expected)


def test_masked_and_quantized_templates_stay_so_in_the_folded_network(tmp_path: Path) -> None:
    network = build("linear")
    plan = attach(network, "everything")
    optimizer = optimizer_of(plan)
    train(network, plan, optimizer, batch("linear"), 12)
    plan.harden(optimizer)
    expected = network.eval()(batch("linear"))
    small = fold(network, threshold=0.9999)
    torch.testing.assert_close(small(batch("linear")), expected, rtol=1e-5, atol=1e-6)
    stored = [value for name, value in small.state_dict().items() if name.startswith("shared_0")]
    assert any((value == 0).any() for value in stored)
    scaled = torch.stack(stored).double() * 2.0**10
    assert torch.equal(scaled, scaled.round())  # on a grid of powers of two
    save(small, tmp_path / "small.pare")
    assert equal(snapshot(load(tmp_path / "small.pare", into=build("linear"))), snapshot(small))


def test_the_curve_falls_layer_by_layer() -> None:
    network = build("linear")
    plan = attach(network, "all")
    train(network, plan, optimizer_of(plan), batch("linear"), 5)
    with torch.no_grad():  # similarities that are all different
        for i, own in enumerate(relaxations(network)):
            own.decision.copy_(torch.tensor([1.0, 0.3 * i, 0.1 * i * i, 0.0]))
    x = batch("linear")
    before = network.eval()(x)

    def measure(model: nn.Module) -> float:
        return float((model(x) - before).abs().max())

    points = list(folding_curve(network, measure))
    assert points[-1].bytes == sizes(fold(network, layers=1)).total
    assert [point.layers for point in points] == [4, 3, 2, 1]
    assert [point.threshold for point in points] == sorted((point.threshold for point in points), reverse=True)
    assert points[0].measured < 1e-6 < points[-1].measured
    for point in points[1:]:
        again = fold(network, threshold=point.threshold)
        assert max(again.__dict__["paretorch_folding"][0].runs) == point.layers


def test_only_some_groups() -> None:
    network = build("lstm")
    attach(network, "one")
    with pytest.raises(ConfigError, match="selects none of the layers that share"):
        fold(network, threshold=0.9, only="head*")
    torch.manual_seed(0)
    stages = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)), *(nn.Linear(4, 4, bias=False) for _ in range(3)))
    compress(stages, SoftSharing(templates=1, by=lambda name, _: int(name) // 3), steps=4)
    with pytest.raises(ConfigError, match="only='6' matches nothing"):
        fold(stages, threshold=0.9, only=["[345]", "6"])
    small = fold(stages, threshold=0.9, only="[345]")
    assert [folding.runs for folding in small.paretorch_folding] == [(1, 2, 3), (1, 1, 1)]


def test_bytes_fall_with_the_layers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(*(nn.Linear(96, 96, bias=False) for _ in range(6)))
    plan = compress(network, SoftSharing(), steps=4)
    own = mixes(network)
    sizes = {}
    for left in (6, 3, 2, 1):
        with torch.no_grad():
            for i, mix in enumerate(own):
                mix.s.copy_((1 + i) * torch.eye(6)[i % left])
        small = fold(network, layers=left)
        expected = network(torch.eye(96))
        torch.testing.assert_close(small(torch.eye(96)), expected, rtol=1e-4, atol=1e-2)
        sizes[left] = save(small, tmp_path / f"{left}.pare").total
        again = load(tmp_path / f"{left}.pare", into=nn.Sequential(*(nn.Linear(96, 96, bias=False) for _ in range(6))))
        assert torch.equal(again(torch.eye(96)), small(torch.eye(96)))
    assert plan is Plan.of(network)
    for left in (3, 2, 1):
        assert sizes[left] / sizes[6] == pytest.approx(left / 6, abs=0.03)
    assert "shared_0_0" in str(report(small))


def test_a_file_that_does_not_fit_leaves_the_module_alone(tmp_path: Path) -> None:
    network = build("lstm")
    attach(network, "one")
    save(fold(network, threshold=0.9), tmp_path / "folded.pare")
    other = build("lstm", seed=2)
    other.head = nn.Linear(6, 3, bias=False)
    before, outputs = snapshot(other), other(batch("lstm"))
    with pytest.raises(ArtefactError):
        load(tmp_path / "folded.pare", into=other)
    assert equal(snapshot(other), before)
    assert type(other.lstm) is nn.LSTM
    assert torch.equal(other(batch("lstm")), outputs)
    assert not hasattr(other, "shared_0_0")


GOOD = {"kind": "share", "bank": "shared_0", "count": 1, "weights": ["1.weight", "3.weight"], "uses": [[0], [0]]}


@pytest.mark.parametrize(
    "change",
    [
        {"bank": "forward"},
        {"count": 0},
        {"count": 10**9},
        {"uses": [[0]]},
        {"uses": [[1], [0]]},
        {"uses": [[], [0]]},
        {"uses": [[True], [0]]},
        {"weights": ["1.weight", "1.weight"]},
        {"weights": ["1.weight", 3]},
        {"weights": ["1.weight", "0.weight"]},
        {"weights": ["1.weight", "nowhere.weight"]},
    ],
)
def test_hostile_edits_are_refused(change: dict[str, object], tmp_path: Path) -> None:
    from paretorch.deploy.filling import replayed
    from paretorch.edits import read_edits

    network = build("linear")
    before = snapshot(network)

    def replay(edit: dict[str, object]) -> None:
        with replayed(network, read_edits([edit])):
            raise KeyError("a reason to undo")

    with pytest.raises(KeyError):
        replay(GOOD)
    with pytest.raises(ArtefactError):
        replay({**GOOD, **change})
    assert equal(snapshot(network), before)


def test_export_accepts_a_folded_network(tmp_path: Path) -> None:
    network = build("conv")
    attach(network, "one")
    small = fold(network, threshold=0.9).eval()
    x = batch("conv")
    torch.testing.assert_close(torch.export.export(small, (x,)).module()(x), small(x))
    assert export_onnx(small, x, tmp_path / "folded.onnx", tolerance=1e-4).exists()  # compares the outputs itself


def test_a_folding_is_plain_data() -> None:
    folding = Folding(("a", "b", "c"), (1, 2, 1), (1.0, 1.0, -1.0), (0.0, 0.0, 0.02), 2)
    assert folding.error == 0.02
    assert folding.words == "back to 1"
