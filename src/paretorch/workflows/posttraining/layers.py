"""The weights that post-training rounds, as matrices, and the inputs that they multiply.

A weight is seen as (groups, rows, columns): a row is one output channel, a column one input of that row. A linear layer has
one group. A convolution has one column per input channel and tap, and as many groups as it has itself, so that a depthwise
layer is many matrices of one row. Embeddings, recurrent and transposed layers have no such inputs: they are rounded
by their weights alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paretorch.core.attach.sites import Site, choose, find_sites, is_conv1d

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True, eq=False)
class Layer:
    """A weight to round.

    Args:
        readers: The modules whose input the weight multiplies; none if it is rounded by its weights alone.
        others: Further owners, such as the embedding that is tied to a head.
    """

    site: Site
    readers: tuple[nn.Module, ...]
    others: tuple[tuple[nn.Module, str], ...]

    @property
    def name(self) -> str:
        return self.site.name

    @property
    def weight(self) -> nn.Parameter:
        return self.site.weight

    @property
    def groups(self) -> int:
        return int(getattr(self.readers[0], "groups", 1)) if self.readers else 1

    @property
    def _transposed(self) -> bool:
        return is_conv1d(self.site.owners[0][0])

    def matrix(self, weight: Tensor | None = None) -> Tensor:
        """Return the weight as (groups, rows, columns) in fp32."""
        values = (self.weight if weight is None else weight).detach().float()
        if self._transposed:
            return values.t()[None]
        return values.reshape(self.groups, values.shape[0] // self.groups, -1)

    def tensor(self, matrix: Tensor) -> Tensor:
        """Return the matrix in the shape and dtype of the weight."""
        values = matrix[0].t() if self._transposed else matrix.reshape(self.weight.shape)
        return values.to(self.weight.dtype)

    def shaped(self, steps: Tensor) -> Tensor:
        """Return steps (1, 1, columns), (groups, rows, 1) or (1, 1, 1) in a shape that broadcasts with the weight."""
        by_row = steps.numel() > 1 and steps.shape[2] == 1
        axis = 1 if by_row == self._transposed else 0
        values = steps.flatten() if by_row else steps[0, 0, :: self.taps]
        return values.view([-1 if i == axis else 1 for i in range(self.weight.dim())])

    @property
    def taps(self) -> int:
        """Columns that share a step: the taps of one input channel."""
        if self._transposed or not self.readers or self.weight.dim() < 3:
            return 1
        return self.weight[0, 0].numel()


def find_layers(model: nn.Module, include: Any = None, exclude: Any = ()) -> list[Layer]:
    """Return every weight of the usual layers once, in the order of the model."""
    return [_layer(site) for site in choose(find_sites(model), include, exclude) if site.weight.is_floating_point()]


def _layer(site: Site) -> Layer:
    readers = tuple(module for module, attribute, _ in site.owners if _reads(module, attribute))
    if len({getattr(module, "groups", 1) for module in readers}) > 1:
        readers = ()
    others = tuple((module, attribute) for module, attribute, _ in site.owners if module not in readers)
    return Layer(site, readers, others)


def _reads(module: nn.Module, attribute: str) -> bool:
    if isinstance(module, nn.MultiheadAttention):
        return attribute == "in_proj_weight"
    return attribute == "weight" and (isinstance(module, (nn.Linear, *_CONVOLUTIONS)) or is_conv1d(module))


def input_rows(module: nn.Module, inputs: tuple[Any, ...], most: int) -> Tensor | None:
    """Return what the weight multiplies as (groups, samples, columns) in fp32; None if there is no such input.

    Args:
        most: Samples to keep; further ones are left out at even distances, the same for every network.
    """
    given = inputs[0]
    if isinstance(module, nn.MultiheadAttention) and any(other is not given for other in inputs[1:3]):
        return None  # keys and values have inputs of their own
    if isinstance(module, _CONVOLUTIONS):
        return _patches(module, given, most)
    rows = given.detach().reshape(-1, given.shape[-1])
    return _thinned(rows, most).float()[None]


def _thinned(rows: Tensor, most: int) -> Tensor:
    return rows if len(rows) <= most else rows[torch.arange(most, device=rows.device) * len(rows) // most]


def _patches(module: nn.Module, given: Tensor, most: int) -> Tensor:
    """Return the patches of a convolution of one, two or three dimensions, one per place of the output."""
    assert isinstance(module, _CONVOLUTIONS)
    dims = len(module.kernel_size)
    batch = given.detach() if given.dim() == dims + 2 else given.detach()[None]
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    view = F.pad(batch, module._reversed_padding_repeated_twice, mode=mode)
    for axis, (size, stride, dilation) in enumerate(
        zip(module.kernel_size, module.stride, module.dilation, strict=True)
    ):
        view = view.unfold(2 + axis, dilation * (size - 1) + 1, stride)[..., ::dilation]
    places = view.shape[0] * view.shape[2 : 2 + dims].numel()
    at = _thinned(torch.arange(places, device=view.device), most)
    index = torch.unravel_index(at, (view.shape[0], *view.shape[2 : 2 + dims]))
    rows = view.movedim(1, 1 + dims)[index].float()
    return rows.reshape(len(at), module.groups, -1).transpose(0, 1)


def output_rows(matrix: Tensor, rows: Tensor) -> Tensor:
    """Return the outputs (samples, channels) of a weight (groups, rows, columns) for its inputs, without bias."""
    return (rows @ matrix.transpose(1, 2)).transpose(0, 1).flatten(1)
