"""Files of other tools: written, read back to the same network, as small as their kind allows."""

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from paretorch import deploy, zoo
from paretorch.deploy.measure.structure import count_macs
from paretorch.deploy.rivals import (
    OnnxNetwork,
    prune_channels,
    read_plain,
    read_sparse,
    read_weight_int8,
    write_int8,
    write_plain,
    write_sparse,
    write_weight_int8,
)
from paretorch.deploy.rivals.files import decode_sparse, encode_sparse
from paretorch.errors import ArtefactError, ConfigError, MissingExtraError


def network() -> nn.Module:
    """A small residual network whose norms are not at their start."""
    torch.manual_seed(0)
    model = zoo.build("resnet20", width=4, channels=1).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.3, 2.0)
            nn.init.uniform_(module.weight, 0.3, 1.5)
            nn.init.normal_(module.bias, 0, 0.3)
    return model


def images() -> Tensor:
    return torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def off(one: nn.Module, other: nn.Module) -> float:
    """The largest difference of outputs, of the largest output."""
    with torch.no_grad():
        expected, found = one(images()), other(images())
    return float((expected - found).abs().max() / expected.abs().max())


def test_plain_files_restore_the_network(tmp_path: Path) -> None:
    model = network()
    full = write_plain(model, tmp_path / "deep" / "full.safetensors")
    half = write_plain(model, tmp_path / "half.safetensors", torch.float16)
    assert off(model, read_plain(full, model)) == 0.0
    assert 0.0 < off(model, read_plain(half, model)) < 0.01
    weights = 4 * sum(tensor.numel() for tensor in model.parameters())
    assert weights < full.stat().st_size < 2.0 * weights
    assert half.stat().st_size < full.stat().st_size - weights // 2
    assert next(model.parameters()).dtype == torch.float32, "the network itself is left alone"
    with pytest.raises(ArtefactError, match="does not hold the state"):
        read_plain(full, nn.Linear(2, 2))


def test_tied_weights_are_written_once(tmp_path: Path) -> None:
    one, tied = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)
    apart = nn.Sequential(one, tied)
    size = write_plain(apart, tmp_path / "apart").stat().st_size
    tied.weight = one.weight
    assert write_plain(apart, tmp_path / "tied").stat().st_size < 0.6 * size


@pytest.mark.parametrize(
    "write", [lambda model, path: write_plain(model, path, torch.float16), write_weight_int8, write_sparse]
)
def test_a_value_beyond_fp16_is_refused(write: Any, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with torch.no_grad():
        model[1].bias[0] = -7e4
    with pytest.raises(ConfigError, match=r"1\.bias has a value of -7e\+04, which torch\.float16 cannot hold"):
        write(model, tmp_path / "net")
    assert list(tmp_path.iterdir()) == []
    with torch.no_grad():
        model[1].bias[0] = torch.inf  # which it can
    write(model, tmp_path / "net")


def test_int8_is_run_by_onnxruntime(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model = network()
    path = write_int8(model, tmp_path / "net.onnx", [images(), images()])
    assert 0.0 < off(model, OnnxNetwork(path)) < 0.2


def test_int8_weights_are_a_quarter(tmp_path: Path) -> None:
    model = network()
    with torch.no_grad():
        model.get_parameter("stem.weight")[1] = 0.0  # a channel without a step
    path = write_weight_int8(model, tmp_path / "net.safetensors")
    found = read_weight_int8(path, model)
    assert 0.0 < off(model, found) < 0.05
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            step = weight.detach().abs().amax(list(range(1, weight.dim())), keepdim=True) / 127
            assert bool(((found.get_parameter(name) - weight).abs() <= step / 2 + 1e-9).all())
    assert path.stat().st_size < 0.6 * write_plain(model, tmp_path / "full").stat().st_size
    with pytest.raises(ArtefactError, match="does not hold the state"):
        read_weight_int8(path, nn.Linear(2, 2))


@pytest.mark.parametrize("zeros", [0.0, 0.5, 0.95])
def test_pruned_files_shrink_with_the_zeros(tmp_path: Path, zeros: float) -> None:
    model = network()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight[torch.rand(weight.shape, generator=torch.Generator().manual_seed(2)) < zeros] = 0.0
    path = write_sparse(model, tmp_path / "net.zst")
    assert off(model, read_sparse(path, model)) < 0.01
    values = sum(int(torch.count_nonzero(weight)) for weight in model.parameters())
    assert path.stat().st_size < 2 * values + sum(w.numel() for w in model.parameters()) / 8 + 2500
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ArtefactError, match="does not hold the state"):
        read_sparse(path, model)
    with pytest.raises(ArtefactError, match="does not hold the state"):
        read_sparse(path.with_name("missing"), model)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 7), min_size=1, max_size=4), st.booleans(), st.booleans(), st.integers(0, 99))
def test_every_layout_restores_the_values(sizes: list[int], masked: bool, apart: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    state: dict[str, Tensor] = {"steps": torch.tensor(7)}
    for i, size in enumerate(sizes):
        keep = torch.rand(size, 3, generator=generator) < 0.5
        state[f"w{i}"] = torch.randn(size, 3, generator=generator).half().float() * keep
    found = decode_sparse(encode_sparse(state, masked, apart), state)
    assert set(found) == set(state)
    assert all(torch.equal(found[name], value) for name, value in state.items())


def test_without_zstandard_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'paretorch\[bench\]'"):
        write_sparse(nn.Linear(2, 2), tmp_path / "x")


@pytest.mark.parametrize("share", [0.3, 0.6])
def test_weak_channels_go_and_strong_ones_stay(tmp_path: Path, share: float) -> None:
    model = network()
    before = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        model.get_parameter("stages.0.0.conv1.weight")[1] = 1e-6
        model.get_parameter("stages.0.1.conv1.weight")[2] = 9.0
    small = prune_channels(model, images(), share, exclude=("head",))
    assert small.get_parameter("stages.0.0.conv1.weight").shape[0] < 4
    assert bool((small.get_parameter("stages.0.1.conv1.weight") == 9.0).any())
    counted = [sum(w.numel() for w in one.parameters() if w.dim() > 1) for one in (small, model)]
    assert counted[0] == pytest.approx((1 - share) * counted[1], rel=0.1)
    assert model.state_dict().keys() == before.keys()
    assert model.get_parameter("stages.0.0.conv1.weight").shape[0] == 4, "the network itself is left alone"
    deploy.save(small, tmp_path / "small.pare")
    assert off(small, deploy.load(tmp_path / "small.pare")) == 0.0


def test_a_share_of_the_macs_and_channels_that_go_together() -> None:
    model = network()
    small = prune_channels(model, images(), 0.5, exclude=("head",), count="macs", multiple=2)
    before, after = (count_macs(one, images()) for one in (model, small))
    assert sum(after.values()) == pytest.approx(0.5 * sum(before.values()), rel=0.15)
    widths = {m.out_channels for m in small.modules() if isinstance(m, nn.Conv2d)}
    assert all(width % 2 == 0 for width in widths)


def test_one_pattern_excludes_as_a_list_of_it_does() -> None:
    small, other = (prune_channels(network(), images(), 0.3, exclude=one) for one in ("*.conv1", ["*.conv1"]))
    assert small.get_parameter("stages.0.0.conv1.weight").shape[0] == 4
    assert all(torch.equal(value, other.state_dict()[key]) for key, value in small.state_dict().items())


def test_without_torch_pruning_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_pruning", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'paretorch\[slim\]'"):
        prune_channels(network(), images(), 0.5, by="torch-pruning")


def test_torch_pruning_may_choose() -> None:
    model = network()
    small = prune_channels(model, images(), 0.5, exclude=("head",), by="torch-pruning")
    counted = [sum(w.numel() for w in one.parameters() if w.dim() > 1) for one in (small, model)]
    assert counted[0] == pytest.approx(0.5 * counted[1], rel=0.15)
    with torch.no_grad():
        assert small(images()).shape == (4, 10)


@pytest.mark.parametrize(
    ("share", "options", "told"),
    [
        (0.0, {}, "above 0"),
        (0.5, {"by": "luck"}, "torch-pruning"),
        (0.5, {"count": "bytes"}, '"weights" or "macs"'),
        (0.5, {"multiple": 0}, "such as 16"),
        (0.5, {"by": "torch-pruning", "multiple": 16}, "leave out count and multiple"),
    ],
)
def test_wrong_arguments_are_named(share: float, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        prune_channels(network(), images(), share, **options)
