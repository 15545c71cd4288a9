"""A report warns if the weights take more bytes than their bits say, and names the parts that take them."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import paretorch as pt
from paretorch.errors import PareWarning
from tests.deploy.nets import smol


def weights(**tensors: Tensor) -> nn.Module:
    module = nn.Module()
    for name, tensor in tensors.items():
        module.register_parameter(name, nn.Parameter(tensor))
    return module


def per_weight() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(1, 6, (200, 150), generator=generator)
    return smol(torch.randn(bits.shape, generator=generator), bits)


def per_row() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(1, 6, (200, 1), generator=generator).expand(200, 150)
    return smol(torch.randn(bits.shape, generator=generator), bits)


def silent(model: nn.Module) -> pt.deploy.Report:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return pt.report(model)


def test_a_map_of_precisions_is_named() -> None:
    with pytest.warns(PareWarning, match=r"1\.\d\d times .* the map of precisions of mixed takes"):
        found = pt.report(weights(mixed=per_weight(), even=per_row()))
    assert found.excess is not None
    assert found.excess in str(found)
    assert json.loads(found.to_json())["excess"] == found.excess
    assert "even" not in found.excess


def test_values_on_no_grid_are_named_beside_others_of_few_bits() -> None:
    with pytest.warns(PareWarning, match="head lies on no grid and takes"):
        pt.report(weights(body=per_row(), head=torch.randn(50, 150)))
    assert silent(weights(head=torch.randn(50, 150))).excess is None, "nothing here was to be small"


def test_steps_of_small_groups_are_named(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(-2, 2, (100, 20, 16), generator=generator)
    model = weights(small=(codes * (torch.rand(100, 20, 1, generator=generator) + 0.1)).flatten(1))
    pt.save(model, tmp_path / "x.pare")
    with pytest.warns(PareWarning, match="the steps of small take"):
        pt.report(tmp_path / "x.pare")


def test_what_is_as_small_as_it_says_gives_no_warning() -> None:
    assert silent(weights(even=per_row())).excess is None
    sparse = per_row() * (torch.rand(200, 150, generator=torch.Generator().manual_seed(1)) > 0.95)
    assert silent(weights(sparse=sparse)).excess is None, "masks are no surprise"
    assert silent(weights(tiny=per_weight()[:3, :3])).excess is None
    assert silent(nn.ReLU()).excess is None
