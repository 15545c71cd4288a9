"""Layers of kinds that torch does not have: known ones are taken, others are named where they are most of a network."""

import warnings

import pytest
import torch
from torch import Tensor, nn

import paretorch as pt
from paretorch.errors import LeftOutWarning


class Own(nn.Module):
    """A linear layer by hand."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, size))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Conv1D(Own):
    """As in transformers: named so, and with the number of its outputs."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.nf = size


def test_most_weights_left_alone_is_said() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Own(8))
    with pytest.warns(LeftOutWarning, match=r"SMOL leaves 80% of the weights alone, such as 1\.weight.*\(Own\)"):
        pt.compress(model, pt.SMOL(target_bits=2.0), steps=2)


@pytest.mark.parametrize("options", [{"include": "*"}, {"include": nn.Linear}, {"exclude": Own}])
def test_who_chooses_is_not_told(options: dict[str, object]) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Own(8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = pt.compress(model, pt.SMOL(target_bits=2.0, **options), steps=2)
    assert plan.metrics()["bits"] > 0


def test_a_few_are_not_worth_a_word() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pt.compress(nn.Sequential(nn.Linear(8, 8), Own(4)), pt.SMOL(target_bits=2.0), steps=2)


def test_the_linear_layer_of_transformers_is_known_with_its_channels() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Conv1D(6))
    plan = pt.compress(model, pt.ContinuousSparsification(target=0.5, group="channel"), steps=1)
    plan.harden()
    weight = plan.finalize()[0].weight
    assert (weight == 0).all(0).sum() == 3, "whole columns, which are outputs"
