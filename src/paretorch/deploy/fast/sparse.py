"""Layers that skip their zeros on a CPU: the weight in compressed rows (CSR), multiplied as W @ xᵀ.

The order matters: torch's CSR kernel runs over the rows of a matrix that stands on the left. F.linear with a CSR weight
computes the same and is several times slower.
"""

from __future__ import annotations

import warnings
from typing import Self

import torch
from torch import Tensor, nn

from paretorch.deploy.fast.adopting import Adopting
from paretorch.errors import ConfigError


class _Sparse(Adopting):
    """Holds the weight, of shape (outputs, inputs), and the bias. For inference, in float32 or float64."""

    row_ends: Tensor
    columns: Tensor
    values: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        if weight.dim() != 2:
            raise ConfigError(f"a sparse weight is two-dimensional, not of shape {tuple(weight.shape)}")
        self.outputs, self.inputs = weight.shape
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls all of CSR beta, once a process
            compressed = weight.detach().to_sparse_csr()
        # 32-bit indices are half the bytes, and what the kernels of MKL take.
        self.register_buffer("row_ends", compressed.crow_indices().to(torch.int32))
        self.register_buffer("columns", compressed.col_indices().to(torch.int32))
        self.register_buffer("values", compressed.values())
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone(), requires_grad=False)

    @property
    def weight(self) -> Tensor:
        """The weight, CSR, sharing memory with the buffers; made once, since that takes as long as a small product."""
        if self._held is None:
            parts = self.row_ends, self.columns, self.values
            self._held = torch.sparse_csr_tensor(*parts, (self.outputs, self.inputs), check_invariants=False)
        held: Tensor = self._held
        return held

    def extra_repr(self) -> str:
        zeros = 1.0 - self.values.numel() / max(1, self.outputs * self.inputs)
        return f"{self.inputs}, {self.outputs}, bias={self.bias is not None}, {zeros:.1%} zeros"


class SparseLinear(_Sparse):
    """y = x Wᵀ + b, with any number of leading dimensions; made by `SparseLinear.of(linear)`.

    The rows of a batch lie side by side in memory, as the product leaves them: to transpose them can take longer than the
    product, and another SparseLinear, or what works element by element, needs no transposing.
    """

    @classmethod
    def of(cls, linear: nn.Linear) -> Self:
        """The same layer, its zeros left out."""
        return cls(linear.weight, linear.bias)

    def forward(self, input: Tensor) -> Tensor:
        flat = input.reshape(-1, self.inputs)
        if len(flat) == 1:  # as matrix times vector, several times faster than as a matrix of one column
            out = torch.mv(self.weight, flat[0])[None]
        elif len(flat):
            out = (self.weight @ flat.T).T
        else:
            out = flat.new_zeros(0, self.outputs)
        out = out if self.bias is None else out + self.bias
        return out.view(*input.shape[:-1], self.outputs)


class SparsePointwise(_Sparse):
    """A 1 × 1 convolution, made by `SparsePointwise.of(conv)`: the channels of all positions times W."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, stride: tuple[int, int] = (1, 1)) -> None:
        super().__init__(weight, bias)
        self.stride = stride

    @classmethod
    def of(cls, conv: nn.Conv2d) -> Self:
        """The same layer, its zeros left out; for one group, without padding."""
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
