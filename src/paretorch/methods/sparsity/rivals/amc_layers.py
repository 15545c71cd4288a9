"""What AMC's agent sees of a layer, and what it may do there (He et al., 2018, section 3 and Algorithm 1).

    state   (t, n, c, h, w, stride, k, FLOPs_t, reduced, rest, a_{t−1}), each scaled to [0, 1]
    action  a ← min(a, a_max);   duty = α Σ W − a_max Σ_{k>t} W_k − reduced;   a ← max(a, duty / W_t)

W_t is what the layer holds of the resource under the budget, here its weights; α is the target. So whatever the agent
wants, at least α of all weights are dropped in the end, and no layer loses more than a_max.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd

from paretorch.core.attach.parametrize import chains_of
from paretorch.core.attach.sites import is_conv1d
from paretorch.support.eval_mode import watched

FEATURES = 11


@dataclass(frozen=True)
class Layer:
    """Output and input channels, size of the input map, stride, kernel size, multiply-adds, weights."""

    n: int
    c: int
    h: int
    w: int
    stride: int
    k: int
    macs: int
    weights: int


def layers_of(model: nn.Module, example: Tensor) -> dict[nn.Module, Layer]:
    """Every decided layer in the order of the forward pass."""
    found: dict[nn.Module, Layer] = {}
    weights: dict[nn.Module, list[Tensor]] = {}
    for module in model.modules():
        own = [weight for chain, weight in chains_of(module) if any(r.room == "sparsity" for r in chain.relaxations())]
        if own and not any(one is other for one in own for others in weights.values() for other in others):
            weights[module] = own  # a tied weight is its first owner's

    def look(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if module not in found:
            found[module] = _layer(module, weights[module], inputs[0], output)

    with watched(model, dict.fromkeys(weights, look)):
        model(example[:1])
    return found


def _layer(module: nn.Module, weights: list[Tensor], given: Tensor, output: Any) -> Layer:
    shape = weights[0].shape
    count = sum(weight.numel() for weight in weights)
    height, width = given.shape[-2:] if given.dim() == 4 else (1, given.shape[-1] if given.dim() == 3 else 1)
    first: Tensor = output[0] if isinstance(output, tuple) else output
    stride: Any = getattr(module, "stride", 1)
    n, c, uses = shape[0], shape[1], first.numel() // shape[0]
    if isinstance(module, _ConvTransposeNd):  # stored by its inputs, and each of these is spread over the kernel
        n, c, uses = shape[1] * module.groups, shape[0] // module.groups, given.numel() // shape[0]
    elif is_conv1d(module):
        n, c, uses = shape[1], shape[0], first.numel() // shape[1]
    return Layer(
        n=n,
        c=c,
        h=height,
        w=width,
        stride=stride[0] if isinstance(stride, tuple) else int(stride),
        k=shape[2] if len(shape) > 2 else 1,
        macs=count * max(uses // len(given), 1),
        weights=count,
    )


class Walk:
    """The states of an episode: fixed facts of the layers, and what has been done so far."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        facts = torch.tensor([(t + 1, *astuple(layer)[:7]) for t, layer in enumerate(layers)], dtype=torch.float64)
        self._facts = facts / facts.amax(0).clamp_min(1)
        self.weights = [layer.weights for layer in layers]

    def state(self, t: int, reduced: float, last: float) -> Tensor:
        """Before layer t, with so many weights dropped so far and the share `last` of the layer before."""
        total = sum(self.weights)
        rest = sum(self.weights[t + 1 :])
        return torch.cat([self._facts[t], torch.tensor([reduced / total, rest / total, last])]).float()

    def bounded(self, t: int, action: float, reduced: float, target: float, most: float) -> float:
        """The share of layer t to drop, so that the target can still be met."""
        duty = target * sum(self.weights) - most * sum(self.weights[t + 1 :]) - reduced
        return max(min(action, most), duty / self.weights[t])
