"""Inputs of a layer, times its weight as a matrix, are its outputs: for every kind of layer that has them."""

import pytest
import torch
from torch import nn

from paretorch.workflows.posttraining.layers import find_layers, input_rows, output_rows

LAYERS = [
    (nn.Linear(7, 5, bias=False), (4, 3, 7)),
    (nn.Conv1d(6, 8, 3, stride=2, padding=1, bias=False), (2, 6, 11)),
    (nn.Conv2d(4, 6, (3, 2), padding=(1, 0), dilation=(2, 1), bias=False), (2, 4, 9, 8)),
    (nn.Conv2d(8, 8, 3, padding="same", groups=8, bias=False), (2, 8, 6, 6)),
    (nn.Conv2d(8, 12, 3, groups=4, padding=1, padding_mode="reflect", bias=False), (2, 8, 6, 6)),
    (nn.Conv3d(2, 4, 2, groups=2, bias=False), (1, 2, 4, 5, 4)),
]


@pytest.mark.parametrize(("module", "shape"), LAYERS, ids=lambda case: type(case).__name__)
def test_rows_times_matrix_are_the_outputs(module: nn.Module, shape: tuple[int, ...]) -> None:
    layer = find_layers(nn.Sequential(module))[0]
    given = torch.randn(shape)
    rows = input_rows(module, (given,), 10**6)
    assert rows is not None
    expected = module(given)
    if not isinstance(module, nn.Linear):
        expected = expected.movedim(1, -1)
    assert torch.allclose(output_rows(layer.matrix(), rows), expected.flatten(0, -2), atol=1e-5)
    assert torch.equal(layer.tensor(layer.matrix()), layer.weight)


def test_few_samples_are_taken_at_even_distances() -> None:
    given = torch.arange(12.0).view(12, 1)
    rows = input_rows(nn.Linear(1, 1), (given,), 4)
    assert rows is not None
    assert rows.flatten().tolist() == [0.0, 3.0, 6.0, 9.0]


def test_a_tied_weight_is_one_layer_that_reads_the_inputs_of_the_head() -> None:
    embedding, head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
    head.weight = embedding.weight
    (layer,) = find_layers(nn.Sequential(embedding, head))
    assert layer.readers == (head,)
    assert layer.others == ((embedding, "weight"),)


def test_attention_reads_its_inputs_only_if_they_are_one() -> None:
    attention = nn.MultiheadAttention(8, 2)
    x, y = torch.randn(5, 2, 8), torch.randn(5, 2, 8)
    rows = input_rows(attention, (x, x, x), 100)
    assert rows is not None
    assert rows.shape == (1, 10, 8)
    assert input_rows(attention, (x, y, y), 100) is None
