"""Layers that run faster than dense ones: weights without their zeros on a CPU, packed weights on a GPU. For inference.

Sparse layers hold the weight in compressed rows (CSR), multiplied as W @ xᵀ. The order matters: torch's CSR kernel runs over
the rows of the matrix on the left. F.linear with a CSR weight computes the same and is several times slower.
"""

from __future__ import annotations

import warnings
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paretorch.deploy.fast import launch
from paretorch.deploy.fast.codes import WIDTHS
from paretorch.deploy.fast.packing import COLUMNS, ROWS, Order, Packed, pack, unpack
from paretorch.deploy.packed.buffers import ResizableBuffers
from paretorch.errors import ConfigError


class _Sparse(ResizableBuffers):
    """Holds the weight, of shape (outputs, inputs), and the bias. For inference, in float32 or float64."""

    row_ends: Tensor
    columns: Tensor
    values: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        if weight.dim() != 2:
            raise ConfigError(f"A sparse weight is two-dimensional, not of shape {tuple(weight.shape)}")
        self.outputs, self.inputs = weight.shape
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns once per process that CSR is in beta
            compressed = weight.detach().to_sparse_csr()
        # 32-bit indices take half the bytes, and the kernels of MKL need them.
        self.register_buffer("row_ends", compressed.crow_indices().to(torch.int32))
        self.register_buffer("columns", compressed.col_indices().to(torch.int32))
        self.register_buffer("values", compressed.values())
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone(), requires_grad=False)

    @property
    def weight(self) -> Tensor:
        """The weight in CSR format, sharing memory with the buffers. It is cached: making it takes as long as a small product."""
        if self._cached is None:
            parts = self.row_ends, self.columns, self.values
            self._cached = torch.sparse_csr_tensor(*parts, (self.outputs, self.inputs), check_invariants=False)
        cached: Tensor = self._cached
        return cached

    def extra_repr(self) -> str:
        zeros = 1.0 - self.values.numel() / max(1, self.outputs * self.inputs)
        return f"{self.inputs}, {self.outputs}, bias={self.bias is not None}, {zeros:.1%} zeros"


class SparseLinear(_Sparse):
    """y = x Wᵀ + b without the zeros of W, with any number of leading dimensions; made by `SparseLinear.of(linear)`.

    The output is column-major, as the product returns it: transposing it can take longer than the product, and another
    SparseLinear, or an elementwise operation, does not need it transposed.
    """

    @classmethod
    def of(cls, linear: nn.Linear) -> Self:
        """Return the same layer without its zeros."""
        return cls(linear.weight, linear.bias)

    def forward(self, input: Tensor) -> Tensor:
        flat = input.reshape(-1, self.inputs)
        if len(flat) == 1:  # matrix times vector: several times faster than times a matrix of one column
            out = torch.mv(self.weight, flat[0])[None]
        elif len(flat):
            out = (self.weight @ flat.T).T
        else:
            out = flat.new_zeros(0, self.outputs)
        out = out if self.bias is None else out + self.bias
        return out.view(*input.shape[:-1], self.outputs)


class SparsePointwise(_Sparse):
    """A 1 × 1 convolution without its zeros: the channels of all positions times W; made by `SparsePointwise.of(conv)`."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, stride: tuple[int, int] = (1, 1)) -> None:
        super().__init__(weight, bias)
        self.stride = stride

    @classmethod
    def of(cls, conv: nn.Conv2d) -> Self:
        """Return the same layer without its zeros; for one group, without padding."""
        if conv.kernel_size != (1, 1) or conv.groups != 1 or conv.padding not in ((0, 0), "valid", "same"):
            raise ConfigError(f"SparsePointwise takes the place of 1 × 1 convolutions without padding, not of {conv}")
        return cls(conv.weight[:, :, 0, 0], conv.bias, (conv.stride[0], conv.stride[1]))

    def forward(self, input: Tensor) -> Tensor:
        taken = input[..., :: self.stride[0], :: self.stride[1]]
        batched = taken if taken.dim() == 4 else taken[None]
        rows, _, height, width = batched.shape
        if rows == 0:
            return input.new_zeros(0, self.outputs, height, width)
        positions = batched.transpose(0, 1).reshape(self.inputs, -1)
        product = (self.weight @ positions).view(self.outputs, rows, height, width).transpose(0, 1)
        out = product.contiguous() if self.bias is None else product.contiguous() + self.bias[:, None, None]
        return out if taken.dim() == 4 else out[0]


class PackedLinear(ResizableBuffers):
    """y = x Wᵀ + b with W packed into 2, 4 or 8 bits per weight (see `packing`); made by `PackedLinear.of(linear)`.

    On NVIDIA GPUs, bf16 inputs of up to 16 rows go through one Triton kernel with fp32 sums, which reads so many bits per
    weight from memory instead of 16. Everything else is computed by F.linear from the unpacked weight: correct everywhere,
    fast only there. One instance must not run on two CUDA streams at the same time.
    """

    spans: Tensor
    exponents: Tensor
    rows: Tensor

    def __init__(self, packed: Packed, bias: Tensor | None = None) -> None:
        super().__init__()
        self.out_features, self.in_features = packed.shape
        self.odd, self.order = packed.odd, packed.order
        for width, words, places in zip(WIDTHS, packed.words, packed.places, strict=True):
            self.register_buffer(f"words{width}", words)
            self.register_buffer(f"places{width}", places)
        for name in ("spans", "exponents", "rows"):
            self.register_buffer(name, getattr(packed, name))
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone(), requires_grad=False)
        self.tuning = launch.default_tuning(packed)

    @classmethod
    def of(cls, linear: nn.Linear, tile: tuple[int, int] = (ROWS, COLUMNS)) -> PackedLinear:
        """Return the packed form, on the same device; raise ConfigError if the weight cannot be packed."""
        return cls(pack(linear.weight, *tile), linear.bias).to(linear.weight.device)

    @property
    def packed(self) -> Packed:
        """The weight as it is stored."""
        words, places = ([getattr(self, f"{name}{width}") for width in WIDTHS] for name in ("words", "places"))
        return Packed(
            (self.out_features, self.in_features),
            self.odd,
            (words[0], words[1], words[2]),
            (places[0], places[1], places[2]),
            self.spans,
            self.exponents,
            self.rows,
        )

    @property
    def weight(self) -> Tensor:
        """The weight, unpacked, float32."""
        return unpack(self.packed)

    def forward(self, input: Tensor) -> Tensor:
        x = input  # named as in nn.Linear
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        if x.dtype != torch.bfloat16 or not self._takes(x):
            return F.linear(x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))
        flat = x.reshape(-1, self.in_features).contiguous()
        if self._cached is None or self._cached[0] is not self.tuning:
            self._cached = self.tuning, {}
        launches: dict[int, launch.Launch] = self._cached[1]
        batch = flat.shape[0]
        if batch not in launches:
            launches[batch] = launch.Launch(self.packed, self.order, self.bias, batch, self.tuning)
        return launches[batch](flat).view(*x.shape[:-1], self.out_features)

    def _takes(self, x: Tensor) -> bool:
        """Return whether the kernel computes this."""
        small = x.shape[-1] == self.in_features and 0 < x.numel() <= launch.LARGEST_BATCH * self.in_features
        differentiated = x.requires_grad and torch.is_grad_enabled()
        return small and not differentiated and x.device == self.rows.device and launch.runs_on(x.device)

    def extra_repr(self) -> str:
        counts = [len(getattr(self, f"words{width}")) for width in WIDTHS]
        shares = ", ".join(f"{n} tiles of {width} bits" for n, width in zip(counts, WIDTHS, strict=True) if n)
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}, {shares or 'all zero'}"

    def get_extra_state(self) -> Tensor:
        return torch.tensor([self.odd, self.order.value])

    def set_extra_state(self, state: Any) -> None:
        self.odd, self.order = bool(state[0]), Order(int(state[1]))
