"""A pruned network that is quantized next: its zeros need not stay, and that is told before any training."""

import warnings

import pytest
import torch
from torch import nn

from paretorch import SMOL, ContinuousSparsification, compress
from paretorch.core.method import Method
from paretorch.errors import PareWarning
from paretorch.methods.precision.rivals import LSQ


def _pruned(share: float) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 10))
    with torch.no_grad():
        model[1].weight.view(-1)[: round(100 * share)] = 0.0
    return model


@pytest.mark.parametrize("method", [SMOL(target_bits=4.0), LSQ(bits=4)])
def test_a_pruned_weight_that_is_quantized_is_told(method: Method) -> None:
    told = f"90% of 1.weight is zero and need not stay so, since {type(method).__name__} drops nothing: .* one compress"
    with pytest.warns(PareWarning, match=told) as found:
        compress(_pruned(0.9), method, steps=4)
    assert len(found) == 1
    assert found[0].filename == __file__


@pytest.mark.parametrize(
    ("share", "methods"),
    [
        (0.9, (ContinuousSparsification(target=0.95), SMOL(target_bits=4.0))),
        (0.9, (ContinuousSparsification(target=0.95),)),
        (0.9, (SMOL(target_bits=2.0, zero_precision=True),)),
        (0.9, (SMOL(target_bits=4.0, exclude="1"),)),
        (0.1, (SMOL(target_bits=4.0),)),
        (1.0, (SMOL(target_bits=4.0),)),
    ],
)
def test_nothing_is_told_where_weights_may_be_dropped_or_zeros_are_few_or_all(
    share: float, methods: tuple[Method, ...]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compress(_pruned(share), *methods, steps=4)
