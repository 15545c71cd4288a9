"""torchao after `finalize`: its `quantize_` on a compressed network, and the file of what it leaves."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8Tensor, Int8WeightOnlyConfig, quantize_

import paretorch as pt
from paretorch.errors import ConfigError


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def small() -> nn.Module:
    methods = (pt.ContinuousSparsification(target=0.5), pt.SMOL(target_bits=4.0))
    return pt.compress(network(), *methods, steps=1).finalize().eval()


@pytest.mark.parametrize("config", [Int8WeightOnlyConfig(), Int8DynamicActivationInt8WeightConfig()])
def test_quantized_after_finalize(config: Any, tmp_path: Path) -> None:
    """Zeros stay zeros, the file of the plain network fills one that torchao quantizes alike, and dequantized weights can be saved."""
    whole, x = small(), torch.randn(4, 64)
    served = copy.deepcopy(whole)
    quantize_(served, config)
    assert isinstance(served[0].weight, Int8Tensor)
    torch.testing.assert_close(served(x), whole(x), rtol=0.05, atol=0.05 * float(whole(x).detach().abs().max()))
    assert bool((served[0].weight.dequantize()[whole[0].weight == 0] == 0).all())
    pt.save(whole, tmp_path / "x.pare")
    again = pt.load(tmp_path / "x.pare", into=network()).eval()
    quantize_(again, config)
    assert torch.equal(again(x), served(x))
    with pytest.raises(ConfigError, match=r"0\.weight is a Int8Tensor.* dequantize\(\)"):
        pt.save(served, tmp_path / "y.pare")
    for layer in (served[0], served[2]):
        layer.weight = nn.Parameter(layer.weight.dequantize())
    assert pt.save(served, tmp_path / "y.pare").total < 0.3 * 4 * (64 * 64 + 64 * 10)
    assert torch.equal(pt.load(tmp_path / "y.pare", into=network()).eval()(x), served(x))


def test_quantized_before_compress() -> None:
    served = network()
    quantize_(served, Int8WeightOnlyConfig())
    with pytest.raises(ConfigError, match=r"0\.weight is a Int8Tensor.* call it after finalize"):
        pt.compress(served, pt.SMOL(target_bits=4.0), steps=1)
