"""Whatever a user's forward pass raises on the example becomes one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import paretorch as pt
from paretorch.deploy.fast import optimize
from paretorch.errors import ConfigError, DivergenceError
from paretorch.support.eval_mode import run_example


class Raising(nn.Module):
    """A linear layer that fails in its own way."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.layer, self.error = nn.Linear(3, 2), error

    def forward(self, x: Tensor) -> Tensor:
        raise self.error


ERRORS = [
    (AssertionError("two images at least"), "two images at least"),
    (AssertionError(), "AssertionError"),
    (KeyError("mask"), "KeyError: 'mask'"),
    (AttributeError("no attribute 'x'"), "no attribute 'x'"),
    (ZeroDivisionError("division by zero"), "division by zero"),
    (ValueError("odd\nand a second line"), "odd$"),
]


@pytest.mark.parametrize(("error", "told"), ERRORS)
def test_an_example_that_does_not_run_raises(error: Exception, told: str, tmp_path: Path) -> None:
    example = torch.zeros(2, 3)
    for run in (
        lambda: run_example(Raising(error), example),
        lambda: pt.export_onnx(Raising(error), example, tmp_path / "net.onnx"),
        lambda: optimize(Raising(error).eval(), example),
    ):
        with pytest.raises(ConfigError, match=rf"The example of shape \(2, 3\) does not run: {told}"):
            run()


def test_an_error_of_the_library_keeps_its_type() -> None:
    with pytest.raises(DivergenceError, match=r"^no longer finite$"):
        run_example(Raising(DivergenceError("no longer finite")), torch.zeros(2, 3))
