"""load(packed=True): which layers are packed, that all values are kept, and what stays dense."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import paretorch as pt
from paretorch.deploy.packed import FewBitConv2d, FewBitEmbedding, FewBitLinear
from paretorch.errors import ArtefactError, PareWarning
from tests.deploy.packed.weights import KINDS, language_model, set_few_bits


def saved(model: nn.Module, path: Path) -> Path:
    pt.save(model, path / "model.pare")
    return path / "model.pare"


def assert_same(model: nn.Module, packed: nn.Module, x: Tensor) -> None:
    for name, module in model.named_modules():
        if hasattr(module, "weight"):
            assert torch.equal(module.weight, packed.get_submodule(name).weight), name
    with torch.no_grad():
        wanted, got = model(x), packed(x)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-6 * float(wanted.abs().max()))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_language_model(device: str, tmp_path: Path) -> None:
    model = language_model()
    into = copy.deepcopy(model).to(device)
    into[3].weight = into[0].weight
    assert pt.load(saved(model, tmp_path), into=into, packed=True) is into
    assert [type(layer) for layer in into] == [FewBitEmbedding, FewBitLinear, FewBitLinear, FewBitLinear]
    assert into[0].codes is into[3].codes, "the tied weight is in memory once"
    assert_same(model, into, torch.randint(0, 200, (2, 7)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", [None, 32])
def test_every_kind_of_grid(kind: str, group: int | None, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(128, 64))
    set_few_bits(model[0], kind, group)
    into = pt.load(saved(model, tmp_path), into=nn.Sequential(nn.Linear(128, 64)), packed=True)
    assert isinstance(into[0], FewBitLinear)
    assert_same(model, into, torch.randn(3, 128))


def convolutions() -> nn.Module:
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3),
        nn.Conv2d(64, 96, 3, stride=2, padding=1),
        nn.Conv2d(96, 64, 3, padding="same", padding_mode="reflect", bias=False),
        nn.Conv2d(64, 128, 3, groups=2, dilation=2),
    )
    for i, layer in enumerate(model):
        set_few_bits(layer, "4 bits" if i % 2 else "2 bits odd")
    return model.eval()


def test_large_convolutions_are_packed_and_equal(tmp_path: Path) -> None:
    model, x = convolutions(), torch.randn(2, 3, 20, 20)
    into = pt.load(saved(model, tmp_path), into=convolutions(), packed=True)
    assert [type(layer) for layer in into] == [nn.Conv2d, FewBitConv2d, FewBitConv2d, FewBitConv2d]
    assert_same(model, into, x)
    with torch.no_grad():
        assert_same(model, into, x[0])


def test_channels_are_unpacked_some_at_a_time(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("paretorch.deploy.packed.layers._CHANNELS_AT_ONCE", 1)
    model = convolutions()
    assert_same(model, pt.load(saved(model, tmp_path), into=convolutions(), packed=True), torch.randn(1, 3, 20, 20))


def test_a_zoo_network(tmp_path: Path) -> None:
    from paretorch.zoo import build

    model = build("resnet20").eval()
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            set_few_bits(layer, "2 bits odd")
    into = pt.load(saved(model, tmp_path), packed=True)
    assert any(isinstance(layer, FewBitConv2d) for layer in into.modules())
    assert not any(tensor.is_meta for tensor in into.state_dict().values())
    assert_same(model, into, torch.randn(1, 3, 32, 32))


def test_a_layer_by_itself_is_returned_packed(tmp_path: Path) -> None:
    model = nn.Linear(64, 64)
    set_few_bits(model, "4 bits")
    assert isinstance(pt.load(saved(model, tmp_path), into=nn.Linear(64, 64), packed=True), FewBitLinear)


def test_networks_without_few_bits_are_loaded_as_usual(tmp_path: Path) -> None:
    model, into = nn.Sequential(nn.Linear(64, 64)), nn.Sequential(nn.Linear(64, 64))
    with pytest.warns(
        PareWarning, match="found no layer with weights of 2, 4 or 8 bits: the network is loaded as it is"
    ):
        pt.load(saved(model, tmp_path), into=into, packed=True)
    assert torch.equal(into[0].weight, model[0].weight)


class Own(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 2


def kept() -> dict[str, nn.Module]:
    hooked, tied = nn.Linear(64, 64), nn.Linear(64, 64)
    hooked.register_forward_hook(lambda *_: None)
    reader = nn.Module()
    reader.table = tied.weight  # not a layer that can hold packed weights
    heads = nn.MultiheadAttention(64, 4)
    return {
        "own": Own(64, 64),
        "hooked": hooked,
        "heads": heads,
        "tied": tied,
        "reader": reader,
        "narrow": nn.Linear(64, 64).bfloat16(),
    }


def test_layers_that_must_stay_dense(tmp_path: Path) -> None:
    model, into = (
        nn.ModuleDict({**kept(), "plain": nn.Linear(64, 64)}),
        nn.ModuleDict({**kept(), "plain": nn.Linear(64, 64)}),
    )
    for layer in (model["own"], model["hooked"], model["heads"].out_proj, model["tied"], model["plain"]):
        set_few_bits(layer, "4 bits")
    pt.load(saved(model, tmp_path), into=into, packed=True)
    assert isinstance(into["plain"], FewBitLinear)
    assert not any(isinstance(module, FewBitLinear) for name, module in into.named_modules() if name != "plain")
    for name, tensor in model.state_dict().items():
        if not name.startswith("plain"):
            assert torch.equal(into.state_dict()[name], tensor), name


def test_tensors_tied_in_the_file_alone(tmp_path: Path) -> None:
    model = language_model()
    into = nn.Sequential(nn.Embedding(200, 96), nn.Linear(96, 128), nn.Linear(128, 96), nn.Linear(96, 200, bias=False))
    pt.load(saved(model, tmp_path), into=into, packed=True)
    assert into[0].codes is into[3].codes
    own = language_model()
    own[3] = Own(96, 200, bias=False)
    pt.load(saved(model, tmp_path), into=own, packed=True)
    assert isinstance(own[0], FewBitEmbedding)
    assert torch.equal(own[3].weight, model[3].weight)


def test_other_shapes_raise_before_anything_changes(tmp_path: Path) -> None:
    model, into = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8)), nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 9))
    set_few_bits(model[0], "4 bits")
    before = copy.deepcopy(into.state_dict())
    with pytest.raises(ArtefactError, match=r"1\.weight"):
        pt.load(saved(model, tmp_path), into=into, packed=True)
    assert all(torch.equal(tensor, before[name]) for name, tensor in into.state_dict().items())


def test_encoder_layers_do_not_read_packed_weights(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval()
    for layer in (model.linear1, model.linear2):
        set_few_bits(layer, "4 bits")
    into = pt.load(
        saved(model, tmp_path), into=nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval(), packed=True
    )
    assert isinstance(into.linear1, FewBitLinear)
    x = torch.randn(2, 5, 64)
    with torch.no_grad():
        torch.testing.assert_close(into(x), model(x))


def test_columns_of_conv1d(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from transformers.pytorch_utils import Conv1D

    model, into = Conv1D(96, 64), Conv1D(96, 64)  # 64 inputs
    with torch.no_grad():
        model.weight.copy_(torch.from_numpy(np.random.default_rng(0).integers(-8, 8, (64, 96)) / 16.0))
    packed, x = pt.load(saved(model, tmp_path), into=into, packed=True), torch.randn(3, 64)
    assert isinstance(packed, FewBitLinear)
    with torch.no_grad():
        torch.testing.assert_close(packed(x), model(x))
