"""Layers whose weights stay packed in memory on a CPU: 2, 4 or 8 bits each. For inference, in fp32.

Linear layers multiply by the packed weight (`few_bits_kernel`), embeddings unpack the rows that are asked for, convolutions some
output channels after others. Every weight has exactly the value of the dense layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paretorch.deploy.packed.buffers import ResizableBuffers
from paretorch.deploy.packed.few_bits import LANES, WIDTHS, FewBits
from paretorch.deploy.packed.kernel import Product
from paretorch.errors import ConfigError

_CHANNELS_AT_ONCE = 1 << 19
"""Weights of a convolution that are dense at once."""


class FewBitLayer(ResizableBuffers):
    """Holds a packed weight and a bias."""

    def __init__(self, weight: FewBits, bias: Tensor | None = None) -> None:
        super().__init__()
        self.shape = weight.shape
        for one in fields(weight):
            self.register_buffer(one.name, getattr(weight, one.name))
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone(), requires_grad=False)
        self.eval()

    @property
    def packed(self) -> FewBits:
        """The weight as it is stored."""
        return FewBits(*(getattr(self, one.name) for one in fields(FewBits)))

    @property
    def weight(self) -> Tensor:
        """The weight, unpacked, fp32."""
        return self.product.rows(self.product.weight.places)

    @property
    def product(self) -> Product:
        """The compiled product. It is made anew when the buffers change."""
        if self._cached is None:
            self._cached = Product(self.packed, self.bias)
        cached: Product = self._cached
        return cached

    def train(self, mode: bool = True) -> Self:
        if mode:
            raise ConfigError("Packed weights cannot be trained: load the file without packed=True")
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        dtype = fn(torch.empty(0)).dtype
        if dtype != torch.float32:
            raise ConfigError(
                f"Packed weights stay float32, not {dtype}: load the file without packed=True to convert it"
            )
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        outputs, inputs = self.packed.shape
        self.shape = outputs, inputs

    def _bits(self) -> str:
        packed = self.packed
        parts = packed.rows.split(list(packed.blocks))
        counts = {width: int((rows >= 0).sum()) for width, rows in zip((*WIDTHS, 0), parts, strict=True)}
        shares = ", ".join(f"{count} of {width} bits" for width, count in counts.items() if count)
        return f"bias={self.bias is not None}, outputs: {shares}"


class FewBitLinear(FewBitLayer):
    """y = x Wᵀ + b, with any number of leading dimensions, in fp32.

    Inputs that need a gradient are multiplied by the unpacked weight. torch.compile leaves the call to Python.
    """

    @property
    def in_features(self) -> int:
        return self.shape[1]

    @property
    def out_features(self) -> int:
        return self.shape[0]

    def forward(self, input: Tensor) -> Tensor:
        if (
            input.dtype != torch.float32
            or input.shape[-1] != self.shape[1]
            or (input.requires_grad and torch.is_grad_enabled())
        ):
            return F.linear(
                input, self.weight.to(input.dtype), None if self.bias is None else self.bias.to(input.dtype)
            )
        return self.product(input.contiguous())

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, {self._bits()}"


class FewBitEmbedding(FewBitLayer):
    """The rows of a packed table."""

    @property
    def num_embeddings(self) -> int:
        return self.shape[0]

    @property
    def embedding_dim(self) -> int:
        return self.shape[1]

    def forward(self, input: Tensor) -> Tensor:
        places = self.product.weight.places[input.flatten()]
        return self.product.rows(places).view(*input.shape, self.shape[1])

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, {self._bits()}"


class FewBitConv2d(FewBitLayer):
    """A convolution whose weight is unpacked for each call, some output channels at a time."""

    def __init__(self, weight: FewBits, conv: nn.Conv2d) -> None:
        super().__init__(weight, conv.bias)
        self.stride, self.padding, self.dilation = conv.stride, conv.padding, conv.dilation
        self.groups, self.kernel_size, self.padding_mode = conv.groups, conv.kernel_size, conv.padding_mode
        self._padding = conv._reversed_padding_repeated_twice

    @property
    def weight(self) -> Tensor:
        return super().weight.view(self.shape[0], -1, *self.kernel_size)

    def forward(self, input: Tensor) -> Tensor:
        x, padding = input, self.padding
        if self.padding_mode != "zeros":
            x, padding = F.pad(x, self._padding, mode=self.padding_mode), (0, 0)
        if self.groups > 1:
            return self._part(x, padding, self.weight, self.bias)
        step = max(LANES, _CHANNELS_AT_ONCE // self.shape[1])
        places = self.product.weight.places
        parts = []
        for at in range(0, self.shape[0], step):
            weight = self.product.rows(places[at : at + step]).view(-1, x.shape[-3], *self.kernel_size)
            parts.append(self._part(x, padding, weight, None if self.bias is None else self.bias[at : at + step]))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-3)

    def _part(self, x: Tensor, padding: Any, weight: Tensor, bias: Tensor | None) -> Tensor:
        bias = None if bias is None else bias.to(x.dtype)
        return F.conv2d(x, weight.to(x.dtype), bias, self.stride, padding, self.dilation, self.groups)

    def extra_repr(self) -> str:
        inputs = self.shape[1] // (self.kernel_size[0] * self.kernel_size[1]) * self.groups
        return f"{inputs}, {self.shape[0]}, kernel_size={self.kernel_size}, stride={self.stride}, {self._bits()}"
