"""A weight that several layers read is in the file once, whatever follows it."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import paretorch.deploy.onnx.export as onnx_module
from paretorch import SMOL, SoftSharing, compress, export_onnx, fold
from tests.deploy.onnx_nets import Looped, constants, loaded, run, settle, types

_X = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def _folded(*methods: object) -> tuple[nn.Module, nn.Module]:
    """Four layers folded into two, and the same network not folded."""
    torch.manual_seed(0)
    model = Looped()
    plan = compress(model, SoftSharing(templates=2), *methods, steps=2)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.1)
    for _ in range(2):
        model(_X).square().mean().backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
    folded = fold(model, layers=2)
    plan.harden()
    return settle(folded), settle(plan.finalize())


@pytest.fixture(scope="module")
def plain() -> tuple[nn.Module, nn.Module]:
    return _folded()


def _stored(path: Path) -> int:
    """Numbers in the convolutions of the loop."""
    return sum(values.size for values in constants(path).values() if values.shape == (24, 24, 3, 3))


def test_a_folded_network_shrinks_in_proportion(plain: tuple[nn.Module, nn.Module], tmp_path: Path) -> None:
    folded, whole = (export_onnx(net, _X, tmp_path / f"{i}.onnx") for i, net in enumerate(plain))
    assert (_stored(folded), _stored(whole)) == (2 * 24 * 24 * 9, 4 * 24 * 24 * 9)
    gone = whole.stat().st_size - folded.stat().st_size
    assert gone == pytest.approx(2 * 24 * 24 * 9 * 4, rel=0.1)
    np.testing.assert_allclose(run(folded, _X), plain[0](_X).detach().numpy(), atol=1e-4)
    assert set(loaded(folded)) == set(loaded(whole))  # no product or norm is left for every call


def test_templates_of_few_bits_are_packed_and_mixed_when_loaded(tmp_path: Path) -> None:
    folded, _ = _folded(SMOL(target_bits=2.0))
    path = export_onnx(folded, _X, tmp_path / "net.onnx")
    kinds = {name: kind for name, kind in types(path).items() if name.startswith("shared")}
    assert "FLOAT" not in kinds.values()
    assert sum(name.endswith(".codes") for name in kinds) == 2
    assert not {"Cast", "Mul", "BatchNormalization"} & set(loaded(path))


def test_int8_layers_that_differ_by_factors_have_their_codes_once(
    plain: tuple[nn.Module, nn.Module], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [torch.randn(64, 1, 8, 8)]
    once = export_onnx(plain[0], _X, tmp_path / "once.onnx", calibrate=batches)
    assert _stored(once) == 2 * 24 * 24 * 9
    assert loaded(once)["QLinearConv"] == 5
    monkeypatch.setattr(onnx_module, "share_codes", lambda model: 0)
    often = export_onnx(plain[0], _X, tmp_path / "often.onnx", calibrate=batches)
    assert _stored(often) > _stored(once)
    np.testing.assert_array_equal(run(once, _X), run(often, _X))


def test_equal_layers_are_merged_and_the_file_says_so(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(8, 8, 3, padding=1, bias=False)
    twin = copy.deepcopy(layer)
    model = settle(nn.Sequential(layer, nn.BatchNorm2d(8), nn.ReLU(), twin, nn.BatchNorm2d(8)))
    path = export_onnx(model, torch.randn(2, 8, 6, 6), tmp_path / "net.onnx")
    assert list(types(path).values()) == ["FLOAT"]
    assert b"2304 bytes of equal tensors merged" in path.read_bytes()
    assert loaded(path)["BatchNormalization"] == 0
