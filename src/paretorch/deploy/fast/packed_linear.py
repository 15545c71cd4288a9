"""A Linear whose weight stays packed: on a GPU, small batches read 2, 4 or 8 bits a weight from memory in place of 16."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paretorch.deploy.fast import launch as _launch
from paretorch.deploy.fast.adopting import Adopting
from paretorch.deploy.fast.codes import WIDTHS
from paretorch.deploy.fast.packing import COLUMNS, ROWS, Order, Packed, pack, unpack
from paretorch.deploy.fast.settings import unmeasured


class PackedLinear(Adopting):
    """y = x Wᵀ + b with W as `packing` has it; made by `PackedLinear.of(linear)`. For inference.

    On NVIDIA GPUs, bf16 inputs of up to 16 rows go through one Triton kernel with fp32 sums. Everything else is computed as
    F.linear does it, from the weight unpacked anew each time: right everywhere, fast only there. One instance must not
    run on two CUDA streams at the same time.
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
        self.tuning = unmeasured(packed)

    @classmethod
    def of(cls, linear: nn.Linear, tile: tuple[int, int] = (ROWS, COLUMNS)) -> PackedLinear:
        """The packed form, on the same device; a ConfigError says why a weight cannot be packed."""
        return cls(pack(linear.weight, *tile), linear.bias).to(linear.weight.device)

    @property
    def packed(self) -> Packed:
        """The weight as it is held."""
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
        if self._held is None or self._held[0] is not self.tuning:
            self._held = self.tuning, {}
        launches: dict[int, _launch.Launch] = self._held[1]
        batch = flat.shape[0]
        if batch not in launches:
            launches[batch] = _launch.Launch(self.packed, self.order, self.bias, batch, self.tuning)
        return launches[batch](flat).view(*x.shape[:-1], self.out_features)

    def _takes(self, x: Tensor) -> bool:
        """Whether the kernel computes this."""
        small = x.shape[-1] == self.in_features and 0 < x.numel() <= _launch.LARGEST_BATCH * self.in_features
        differentiated = x.requires_grad and torch.is_grad_enabled()
        return small and not differentiated and x.device == self.rows.device and _launch.runs_on(x.device)

    def extra_repr(self) -> str:
        counts = [len(getattr(self, f"words{width}")) for width in WIDTHS]
        shares = ", ".join(f"{n} tiles of {width} bits" for n, width in zip(counts, WIDTHS, strict=True) if n)
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}, {shares or 'all zero'}"

    def get_extra_state(self) -> Tensor:
        return torch.tensor([self.odd, self.order.value])

    def set_extra_state(self, state: Any) -> None:
        self.odd, self.order = bool(state[0]), Order(int(state[1]))
