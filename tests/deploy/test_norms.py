"""Norms in the artefact: rounded to half precision, or folded into the layer before, as `save` is asked to."""

from pathlib import Path

import pytest
import torch
from torch import nn

from paretorch.deploy import load, save, sizes
from paretorch.errors import ConfigError
from tests.deploy.nets import network


def test_norms_that_float16_cannot_hold_are_refused(tmp_path: Path) -> None:
    model = nn.BatchNorm1d(3)
    model.running_var.fill_(1e6)
    with pytest.raises(ConfigError, match=r"a BatchNorm1d has a running_var of 1e\+06, which it cannot hold"):
        save(model, tmp_path / "net.pare", norms=torch.float16)
    save(model, tmp_path / "net.pare", norms=torch.bfloat16)
    again = load(tmp_path / "net.pare", into=nn.BatchNorm1d(3))
    assert torch.equal(again.running_var, model.running_var.bfloat16().float())


def test_bfloat16_norms_are_rounded_and_the_rest_is_not(tmp_path: Path) -> None:
    model = network()
    assert save(model, tmp_path / "net.pare", norms=torch.bfloat16).total < sizes(model).total
    back = load(tmp_path / "net.pare", into=network()).state_dict()
    for name, tensor in model.state_dict().items():
        rounded = tensor.bfloat16().float() if name.startswith("1.") and tensor.is_floating_point() else tensor
        assert torch.equal(back[name], rounded), name
    with pytest.raises(ConfigError, match="norms"):
        save(model, tmp_path / "net.pare", norms=torch.int8)


@pytest.mark.parametrize("norms", [torch.float32, torch.bfloat16])
def test_folded_norms_compute_the_same_in_fewer_bytes(norms: torch.dtype, tmp_path: Path) -> None:
    model = network().eval()
    nn.init.uniform_(model[1].weight, 0.5, 1.5)
    nn.init.uniform_(model[1].bias)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    folded = save(model, tmp_path / "net.pare", fold_norms=True, norms=norms)
    assert folded.total < sizes(model, norms=norms).total
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    x = torch.randn(2, 3, 4, 4)
    close = 1e-5 if norms == torch.float32 else 3e-2
    torch.testing.assert_close(load(tmp_path / "net.pare", into=network()).eval()(x), model(x), atol=close, rtol=close)


class PreNormBlock(nn.Module):
    """Named for its norm; the rest is none."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.randn(7, 8))
        self.norm = nn.LayerNorm((7, 8))
        nn.init.normal_(self.norm.weight)


class NormedLinear(nn.Linear):
    """Its weight is a matrix."""


def test_only_vectors_of_norms_are_rounded(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(PreNormBlock(), NormedLinear(8, 8, bias=False))
    save(model, tmp_path / "x.pare", norms=torch.bfloat16)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    after = load(tmp_path / "x.pare", into=model).state_dict()
    assert torch.equal(after["0.place"], before["0.place"])
    assert torch.equal(after["1.weight"], before["1.weight"])
    assert torch.equal(after["0.norm.weight"], before["0.norm.weight"].bfloat16().float())


def test_a_fold_that_its_dtype_cannot_hold_is_refused(tmp_path: Path) -> None:
    """A small variance makes a large weight: in fp16 an infinity, which was saved without a word."""
    norm = nn.BatchNorm1d(3).half().eval()
    with torch.no_grad():
        norm.weight.fill_(400.0)
        norm.running_var.zero_()
    with pytest.raises(ConfigError, match=r"beyond torch\.float16 after folding"):
        save(norm, tmp_path / "x.pare", fold_norms=True)
    assert not (tmp_path / "x.pare").exists()
    save(norm, tmp_path / "x.pare")
