"""The code of docs/activations.md runs as written, and its claims hold."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

import paretorch as pt
from paretorch.methods.precision.activations import SMOLActivations

PAGE = (Path(__file__).parents[3] / "docs" / "activations.md").read_text()


def test_plans_are_made_as_written() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks[:2]:
        model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
        names: dict[str, Any] = {
            "model": model,
            "x": torch.randn(2, 2, 4, 4),
            "epochs": 1,
            "steps": 3,
            "loader": [1, 2],
        }
        exec(block, names | {"pt": pt, "torch": torch})
        assert "activation_bits" in pt.Plan.of(model).metrics()


def test_every_option_has_its_line() -> None:
    own = {field.name for field in fields(SMOLActivations)} - {"zero_precision", "scale", "format", "optimizer"}
    assert {name for name in own if f"`{name}`" not in PAGE} == set()


def test_shared_noise_would_vanish_behind_a_batch_norm() -> None:
    """Why each example has its own noise: what all examples share, a batch norm takes away."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Tanh(), nn.Linear(4, 4), nn.BatchNorm1d(4))
    x = torch.randn(16, 4)
    before = model(x)
    pt.compress(model, SMOLActivations(target_bits=2.0, init_bits=2.0), steps=5, example=x)
    assert float((model(x) - before).detach().abs().max()) > 0.1
