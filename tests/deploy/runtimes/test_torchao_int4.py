"""State dicts with torchao's tensors of 4 bits: the trained values, bit for bit, in torch's own kernels."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torchao.prototype.quantization.int4 import Int4OpaqueTensor

import paretorch as pt
from paretorch.errors import ConfigError, LeftOutWarning, PareWarning

RUNTIME = "torchao-int4"


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 96), nn.ReLU(), nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 10))


def small() -> nn.Module:
    with pytest.warns(
        LeftOutWarning, match=re.escape("1 of 3 layers, which stay in fp32 (1.6% of the weights): 4.weight")
    ):
        return pt.compress(network(), pt.SMOL(), steps=1, runtime=RUNTIME).finalize().eval()


def test_kernels_multiply_with_the_trained_values(tmp_path: Path) -> None:
    whole, served = small(), network()
    path = pt.export(whole, tmp_path / "small.pt", runtime=RUNTIME)
    served.load_state_dict(torch.load(path, weights_only=True), assign=True)
    for i, block in ((0, 128), (2, 32)):
        weight = served[i].weight
        assert isinstance(weight, Int4OpaqueTensor)
        assert weight.block_size == [1, block]
        assert torch.equal(nn.functional.linear(torch.eye(weight.shape[1]), weight), whole[i].weight.detach().T)  # type: ignore[index]
    assert torch.equal(served[4].weight, whole[4].weight)  # type: ignore[index]
    x = torch.randn(7, 256)
    assert torch.allclose(served(x), whole(x), atol=1e-5)
    tensors = pt.report(whole, latency=False).runtimes[RUNTIME]
    assert tensors == (96 * 256 + 48 * 96) // 2 + 8 * (2 * 96 + 3 * 48) + 4 * (10 * 48 + 96 + 48 + 10)
    assert tensors < path.stat().st_size < tensors + 6000


def test_tied_heads_and_other_layers_stay_as_they_are(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.body, self.head = (
                nn.Embedding(32, 64),
                nn.Linear(64, 64),
                nn.Linear(64, 32, bias=False),
            )
            self.head.weight = self.embedding.weight

    with pytest.warns(LeftOutWarning, match=re.escape("1 of 2 layers, which stay in fp32 (33.3% of the weights)")):
        whole = pt.compress(Tied(), pt.SMOL(), steps=1, runtime=RUNTIME).finalize()
    state = torch.load(pt.export(whole, tmp_path / "small.pt", runtime=RUNTIME), weights_only=True)
    assert isinstance(state["body.weight"], Int4OpaqueTensor)
    assert torch.equal(state["head.weight"], whole.embedding.weight.detach())  # type: ignore[union-attr,arg-type]


def test_weights_off_the_grid_are_named(tmp_path: Path) -> None:
    with pytest.warns(
        PareWarning, match=re.escape("has 2 weights in fp32, since they lie on no grid of 'torchao-int4'")
    ):
        path = pt.export(network(), tmp_path / "dense.pt", runtime=RUNTIME)
    assert torch.equal(torch.load(path, weights_only=True)["0.weight"], network()[0].weight.detach())


def test_what_cannot_work_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match="has codes for none of the layers: leave it out"),
        pytest.warns(LeftOutWarning),
    ):
        pt.compress(nn.Sequential(nn.Conv2d(3, 16, 3)), pt.SMOL(), steps=1, runtime=RUNTIME)
    with pytest.raises(ConfigError, match="has codes for none of the layers: torch"):
        pt.export(nn.Linear(64, 10), tmp_path / "small.pt", runtime=RUNTIME)
    with pytest.raises(ConfigError, match=re.escape(f"give the file, such as {tmp_path / 'model.pt'}")):
        pt.export(network(), tmp_path, runtime=RUNTIME)
