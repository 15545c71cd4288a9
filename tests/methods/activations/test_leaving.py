"""finalize, save, load and ONNX: the quantized activations stay, as plain modules."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from paretorch import SMOL, ContinuousSparsification, SMOLActivations, compress, export_onnx, load, save
from paretorch.edits import QuantizedActivation, read_edits
from paretorch.errors import ArtefactError, ConfigError
from paretorch.report import report
from paretorch.zoo import build as build_network
from tests.methods.activations.nets import METHODS, batch, build, run_to


@pytest.mark.parametrize("method", list(METHODS))
def test_finalize_is_exact_and_leaves_ordinary_modules(method: str) -> None:
    network, plan, _ = run_to(method, "hard")
    network.eval()
    before, plain_keys, foretold = network(batch()), set(build().state_dict()), plan.plain_state_dict()
    small = plan.finalize()
    assert foretold.keys() == small.state_dict().keys()
    assert all(torch.equal(foretold[key], value) for key, value in small.state_dict().items())
    assert small is network
    assert torch.equal(small(batch()), before)
    assert isinstance(small.relu, QuantizedActivation)
    assert isinstance(small.relu.inner, nn.ReLU)
    added = {f"{name}.{leaf}" for name in quantized(small) for leaf in ("steps", "bounds")}
    assert set(small.state_dict()) == plain_keys | added
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in small.modules())
    assert not any("paretorch" in name for name in dict(small.named_modules()))


def quantized(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, QuantizedActivation)]


@pytest.mark.parametrize("method", list(METHODS))
def test_save_and_load_are_exact(method: str, tmp_path: Path) -> None:
    _, plan, _ = run_to(method, "hard")
    small = plan.finalize().eval()
    save(small, tmp_path / "net.pare")
    fresh = load(tmp_path / "net.pare", into=build(seed=3)).eval()
    assert quantized(fresh) == quantized(small)
    assert torch.equal(fresh(batch()), small(batch()))
    save(fresh, tmp_path / "again.pare")
    assert (tmp_path / "again.pare").read_bytes() == (tmp_path / "net.pare").read_bytes()


def test_a_zoo_network_comes_back_by_its_name(tmp_path: Path) -> None:
    model = build_network("resnet20")
    x = torch.randn(2, 3, 16, 16)
    plan = compress(model, SMOLActivations(target_bits=3.0, group="channel"), steps=2, example=x)
    small = plan.finalize().eval()
    save(small, tmp_path / "net.pare")
    again = load(tmp_path / "net.pare")
    assert torch.equal(again(x), small(x))
    assert len(quantized(again)) == 19


def test_a_wrong_file_leaves_the_module_as_it_was(tmp_path: Path) -> None:
    _, plan, _ = run_to("position", "hard")
    save(plan.finalize(), tmp_path / "net.pare")
    other = build()
    other.head = nn.Sequential(nn.Linear(4, 6), nn.Sigmoid(), nn.Linear(6, 7))
    with pytest.raises(ArtefactError):
        load(tmp_path / "net.pare", into=other)
    assert quantized(other) == []
    without = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(ArtefactError, match="does not have"):
        load(tmp_path / "net.pare", into=without)


@pytest.mark.parametrize(
    "edit",
    [
        {"modules": [], "grid": [1]},
        {"modules": [""], "grid": [1]},
        {"modules": [3], "grid": [1]},
        {"modules": ["relu"], "grid": [2**30]},
        {"modules": ["relu"], "grid": [2**12, 2**12]},
        {"modules": ["relu"], "grid": [0]},
        {"modules": ["relu"], "grid": [True]},
        {"modules": ["relu"], "grid": "4"},
    ],
)
def test_hostile_edits_are_refused(edit: dict[str, object]) -> None:
    with pytest.raises(ArtefactError, match="quantize_activation"):
        read_edits([{"kind": "quantize_activation", **edit}])


@pytest.mark.parametrize("name", ["head", "first", "nowhere"])
def test_only_activations_can_be_quantized_by_a_file(name: str, tmp_path: Path) -> None:
    model = build()
    model.paretorch_edits = [{"kind": "quantize_activation", "modules": [name], "grid": [1]}]
    save(model, tmp_path / "net.pare")
    with pytest.raises(ArtefactError, match="An edit"):
        load(tmp_path / "net.pare", into=build())


def test_tied_modules_stay_one(tmp_path: Path) -> None:
    def twice() -> nn.Module:
        torch.manual_seed(0)
        act = nn.ReLU()
        return nn.Sequential(nn.Linear(3, 3), act, nn.Linear(3, 3), act)

    x, model = torch.randn(4, 3), twice()
    small = compress(model, SMOLActivations(target_bits=2.0), steps=2, example=x).finalize().eval()
    assert small[1] is small[3]
    save(small, tmp_path / "net.pare")
    again = load(tmp_path / "net.pare", into=twice()).eval()
    assert again[1] is again[3]
    assert torch.equal(again(x), small(x))


@pytest.mark.parametrize("method", ["position", "fixed", "pact"])
def test_onnx_matches(method: str, tmp_path: Path) -> None:
    import onnxruntime

    _, plan, _ = run_to(method, "hard")
    small = plan.finalize().eval()
    path = export_onnx(small, batch(), tmp_path / "net.onnx")
    (output,) = onnxruntime.InferenceSession(path).run(None, {"input": batch(9).numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(output, small(batch(9)).numpy(), atol=1e-4)


def test_torch_export_accepts_it() -> None:
    _, plan, _ = run_to("channel", "hard")
    small = plan.finalize().eval()
    program = torch.export.export(small, (batch(),))
    torch.testing.assert_close(program.module()(batch()), small(batch()))


def test_it_goes_on_training_straight_through() -> None:
    _, plan, _ = run_to("layer", "hard")
    small = plan.finalize().train()
    small(batch()).sum().backward()
    assert float(small.first.weight.grad.abs().sum()) > 0


def test_the_map_counts_in_the_file_and_not_among_the_weights(tmp_path: Path) -> None:
    _, plan, _ = run_to("position", "hard")
    small = plan.finalize()
    found = report(small)
    assert found.weights == sum(p.numel() for p in build().parameters() if p.dim() > 1)
    assert found.sizes.tensors["relu.steps"].numel == 64


def test_a_byte_budget_counts_the_maps(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
    x = torch.randn(8, 32)
    methods = (SMOL(), SMOLActivations(target_bits=3.0))
    small = compress(model, *methods, steps=2, example=x, budget=2500).finalize()
    assert save(small, tmp_path / "net.pare").total <= 2500


def test_channels_may_go_beside_activations_by_layer(tmp_path: Path) -> None:
    def net() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 3))

    x = torch.randn(4, 6)
    sparse = ContinuousSparsification(target=0.5, group="channel")
    with pytest.raises(ConfigError, match='use group="layer"'):
        compress(net(), sparse, SMOLActivations(target_bits=3.0), steps=2, example=x)
    plan = compress(net(), sparse, SMOLActivations(target_bits=3.0, group="layer"), steps=2, example=x)
    plan.harden()
    before = plan.model.eval()(x)
    small = plan.finalize()
    assert small[0].out_features < 10
    torch.testing.assert_close(small(x), before, rtol=1e-5, atol=1e-5)
    save(small, tmp_path / "net.pare")
    assert torch.equal(load(tmp_path / "net.pare", into=net()).eval()(x), small(x))


def test_what_is_quantized_behind_a_norm_without_weights_loses_its_channels(tmp_path: Path) -> None:
    def net() -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(3, 8, 1), nn.InstanceNorm2d(8), nn.Conv2d(8, 4, 1), nn.Flatten(), nn.Linear(144, 2)
        )

    torch.manual_seed(0)
    model, x = net(), torch.randn(4, 3, 6, 6)
    plan = compress(model, _channels("2", "4"), _to_bits("1", (0.0, 4.0)), steps=1, example=x)
    plan.harden()
    expected = model.eval()(x)
    small = plan.finalize()
    assert len(small[0].bias) == 4
    assert str(small[1].inner) == str(nn.InstanceNorm2d(4))
    torch.testing.assert_close(small(x), expected, atol=1e-5, rtol=1e-5)
    save(small, tmp_path / "net.pare")
    assert torch.equal(load(tmp_path / "net.pare", into=net()).eval()(x), small(x))


@pytest.mark.parametrize(
    "kind", [nn.BatchNorm2d(8), nn.PReLU(8), nn.Conv2d(8, 8, 1)], ids=lambda one: type(one).__name__
)
def test_outputs_of_modules_with_weights_are_refused(kind: nn.Module) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 1), kind, nn.Flatten(), nn.Linear(288, 2))
    with pytest.raises(ConfigError, match=rf"^1, a {type(kind).__name__}, has weights or statistics .* nn.Identity"):
        compress(model, _to_bits("1", (0.0, 4.0)), steps=1, example=torch.randn(4, 3, 6, 6))
    behind = nn.Sequential(*model[:2], nn.Identity(), *model[2:])
    assert compress(behind, _to_bits("2", (0.0, 4.0)), steps=1, example=torch.randn(4, 3, 6, 6)).methods


@pytest.mark.parametrize(
    ("bounds", "go"),
    [((-1.0, 1.0), False), ((-0.3, 2.0), False), ((0.5, 2.0), False), ((0.0, 2.0), True), ((-1.0, 0.0), True)],
)
def test_channels_stay_that_are_quantized_without_a_zero(bounds: tuple[float, float], go: bool) -> None:
    """A removed channel is zero where it is read; a grid without a zero would make it something else."""
    torch.manual_seed(0)
    x = torch.randn(4, 3, 4, 4)
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Tanh(), nn.Conv2d(8, 8, 1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4))
    plan = compress(model, _channels("5", target=0.3), _to_bits("1", bounds), steps=2, example=x)
    for _ in range(2):
        model(x).sum().backward()
        plan.step()
    plan.harden()
    expected = model.eval()(x)
    small = plan.finalize()
    assert (len(small[0].bias) < 8) == go
    assert len(small[2].bias) < 8
    torch.testing.assert_close(small(x), expected, atol=1e-5, rtol=1e-5)


def test_it_is_said_where_all_channels_are_quantized_without_a_zero() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Tanh(), nn.Flatten(), nn.Linear(128, 4))
    with pytest.raises(ConfigError, match=r"finds no channel .* no level at zero"):
        compress(model, _channels("3"), _to_bits("1", None), steps=2, example=torch.randn(4, 3, 4, 4))
    assert not model[1]._forward_hooks


def _channels(*exclude: str, target: float = 0.5) -> ContinuousSparsification:
    return ContinuousSparsification(target=target, group="channel", exclude=exclude)


def _to_bits(include: str, bounds: tuple[float, float] | None) -> SMOLActivations:
    return SMOLActivations(target_bits=4.0, group="layer", include=include, bounds=bounds)
