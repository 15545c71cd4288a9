"""Multiply-adds are counted at the stored weight, and none is lost."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from transformers.pytorch_utils import Conv1D

from paretorch.report import report


class Tied(nn.Module):
    """A table that is read at the start and multiplied by at the end, as in language models."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
        self.out.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.table(x))
        return out


class Attends(nn.Module):
    def __init__(self, inputs: int = 8) -> None:
        super().__init__()
        self.read = nn.MultiheadAttention(8, 2, batch_first=True, kdim=inputs, vdim=inputs)
        self.inputs = inputs

    def forward(self, x: Tensor) -> Tensor:
        other = x[..., : self.inputs]
        out: Tensor = self.read(x, other, other)[0]
        return out


def test_a_tied_weight_has_the_macs_of_all_its_layers() -> None:
    model = Tied()
    with torch.no_grad():
        model.table.weight[:5] = 0
    found = report(model, example=torch.zeros(2, 3, dtype=torch.int64), latency=False)
    assert [(layer.name, layer.macs) for layer in found.layers] == [("table.weight", 3 * 4 * 10)]
    assert (found.macs, found.macs_kept) == (120, 60)


@pytest.mark.parametrize("inputs", [8, 6])
def test_the_projections_of_attention_are_linear_layers(inputs: int) -> None:
    found = report(Attends(inputs), example=torch.randn(2, 5, 8), latency=False)
    assert found.macs == 5 * 8 * 8 + 2 * 5 * inputs * 8 + 5 * 8 * 8
    assert {layer.name: layer.macs for layer in found.layers}["read.out_proj.weight"] == 5 * 8 * 8


class Named(nn.Module):
    """Layers whose inputs have names, not all of them in order."""

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.MultiheadAttention(8, 2, batch_first=True, kdim=6, vdim=6)
        self.spread = nn.ConvTranspose1d(5, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        other = x[:, :4, :6]
        read = self.read(need_weights=False, value=other, key=other, query=x)[0]
        out: Tensor = self.spread(input=read)
        return out


def test_keyword_inputs_count_as_positional_ones() -> None:
    found = report(Named(), example=torch.randn(2, 5, 8), latency=False)
    macs = {layer.name: layer.macs for layer in found.layers}
    assert macs["read.q_proj_weight"] == 5 * 8 * 8 + 2 * 4 * 6 * 8
    assert macs["read.out_proj.weight"] == 5 * 8 * 8
    assert macs["spread.weight"] == 5 * 8 * 3 * 2


def test_a_weight_made_of_others_counts_with_the_largest() -> None:
    found = report(weight_norm(nn.Linear(4, 6)), example=torch.randn(2, 4), latency=False)
    assert [layer.macs for layer in found.layers] == [None, 24]


def test_the_linear_layers_of_transformers_count() -> None:
    model = nn.Sequential(Conv1D(6, 4), nn.Linear(6, 2))
    with torch.no_grad():
        model[0].weight[:2] = 0.0
    found = report(model, example=torch.randn(3, 5, 4), latency=False)
    assert {layer.name: layer.macs for layer in found.layers} == {"0.weight": 5 * 4 * 6, "1.weight": 5 * 6 * 2}
    assert found.macs_kept == 5 * 2 * 6 + 5 * 6 * 2
