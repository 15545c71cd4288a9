"""Exports that warn: a file that is larger than int8, or has no integers where these were asked for, says why."""

import re
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import paretorch as pt
from paretorch.errors import PareWarning


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32)).eval()


@torch.no_grad()
def round_to(layer: nn.Linear, bits: int) -> None:
    step = layer.weight.abs().max() / (2 ** (bits - 1) - 1)
    layer.weight.copy_((layer.weight / step).round() * step)


def test_plain_numbers_in_place_of_integers_are_said(tmp_path: Path) -> None:
    words = 'weights="qdq" left 2 of 2 weights as plain numbers, which lie on no grid of 8 bits or less (0.weight, 2.weight)'
    with pytest.warns(PareWarning, match=re.escape(words)):
        pt.export_onnx(network(), torch.randn(2, 64), tmp_path / "net.onnx", weights="qdq")


def test_weights_on_no_grid_beside_others_are_said(tmp_path: Path) -> None:
    model = network()
    round_to(model[0], 4)
    with pytest.warns(PareWarning, match=re.escape("1 of 2 weights lie on no grid (2.weight)")):
        pt.export_onnx(model, torch.randn(2, 64), tmp_path / "net.onnx")


def test_zeros_are_said(tmp_path: Path) -> None:
    model = network()
    with torch.no_grad():
        for layer in (model[0], model[2]):
            layer.weight[torch.rand(layer.weight.shape) < 0.9] = 0.0
    with pytest.warns(PareWarning, match="ONNX stores zeros, 90% here, like other values"):
        pt.export_onnx(model, torch.randn(2, 64), tmp_path / "net.onnx")


def test_one_wide_channel_is_said(tmp_path: Path) -> None:
    model = network()
    for layer in (model[0], model[2]):
        round_to(layer, 4)
        with torch.no_grad():
            layer.weight[0] = (torch.randn(layer.in_features) * 200).round().clamp(-500, 500) * 0.01
            layer.weight[0, 0] = 0.01
    with pytest.warns(PareWarning, match="the widest channel of 2 weights has more than 8 bits"):
        pt.export_onnx(model, torch.randn(2, 64), tmp_path / "net.onnx")


@pytest.mark.parametrize("bits", [None, 4, 8])
def test_dense_networks_and_small_files_are_left_alone(bits: int | None, tmp_path: Path) -> None:
    model = network()
    for layer in (model[0], model[2]):
        if bits is not None:
            round_to(layer, bits)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PareWarning)
        pt.export_onnx(model, torch.randn(2, 64), tmp_path / "net.onnx")
