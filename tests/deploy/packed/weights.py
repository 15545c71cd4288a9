"""Random weights of few bits."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from paretorch.deploy.codec.integers import Integers

KINDS = ("2 bits", "2 bits odd", "4 bits", "4 bits odd", "8 bits", "ternary", "mixed")


def random_integers(kind: str, outputs: int, inputs: int, group: int | None = None, seed: int = 0) -> Integers:
    """Numbers of a kind, with real steps of either sign."""
    rng, shape, group = np.random.default_rng(seed), (outputs, inputs), group or inputs
    if kind == "mixed":  # odd grids of 1 to 4 bits on one fine grid, and rows of zeros
        bits = rng.integers(0, 5, (outputs, 1))
        odd = 2 * (rng.integers(0, 16, shape) % (1 << bits)) + 1 - (1 << bits)
        numbers = np.where(bits == 0, 0, odd * (1 << (4 - bits)))
    elif kind == "ternary":
        numbers = rng.integers(-1, 2, shape)
    else:
        bits = int(kind[0])
        codes = rng.integers(0, 1 << bits, shape)
        numbers = 2 * codes + 1 - (1 << bits) if kind.endswith("odd") else codes - (1 << (bits - 1))
    steps = rng.uniform(0.5, 1.0, (outputs, -(-inputs // group))).astype(np.float32)
    return Integers(numbers.astype(np.int16), steps * rng.choice([-1, 1], steps.shape).astype(np.float32), group)


def set_few_bits(layer: nn.Module, kind: str, group: int | None = None, seed: int = 0) -> None:
    """Give a layer such weights, no larger than those of a usual network."""
    weight: Tensor = layer.weight  # type: ignore[assignment]
    own = random_integers(kind, len(weight), weight[0].numel(), group, seed)
    small = Integers(own.numbers, own.steps * np.float32(0.01), own.group)
    with torch.no_grad():
        weight.copy_(torch.from_numpy(small.dense()).view(weight.shape))


def language_model() -> nn.Module:
    """An embedding, two Linear layers and a head that is tied to the embedding."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(200, 96), nn.Linear(96, 128), nn.Linear(128, 96), nn.Linear(96, 200, bias=False))
    set_few_bits(model[0], "4 bits odd")
    set_few_bits(model[1], "2 bits odd", 32)
    set_few_bits(model[2], "4 bits")
    model[3].weight = model[0].weight  # type: ignore[assignment]
    return model.eval()
