"""Addresses of many tensors on a GPU, for kernels that go through all of them in one launch."""

import torch
from torch import Tensor

from paretorch.errors import ConfigError


class AddressTable:
    """int64 values on the GPU, one column per tensor: the second row has the addresses of the gradients, which move.

    The table is sent again only if a gradient has moved, asynchronously from pinned memory. A CUDA graph that is captured
    with unmoved gradients gets the table as it is. Otherwise the copy becomes part of the graph and reads the pinned
    memory at every replay. In both cases the table then belongs to the graph and is never written again.

    Args:
        fixed: All rows except the second.
        device: Where the kernel runs.
        addressed: How many of the fixed rows, from the first on, are addresses whose alignment matters.
    """

    def __init__(self, fixed: list[list[int]], device: torch.device, addressed: int = 0) -> None:
        self._fixed, self._device = fixed, device
        self.is_aligned = all(address % 16 == 0 for row in fixed[:addressed] for address in row)
        """Whether these are multiples of 16 bytes."""
        self._sent = [0] * len(fixed[0])
        self._sent_aligned = self.is_aligned
        self._table = self._pinned(self._rows(self._sent)).to(device)
        self._spare: Tensor | None = None
        self._graph_buffers: dict[tuple[int, ...], Tensor] = {}
        self._captured: list[Tensor] = []

    @property
    def sent(self) -> Tensor:
        """The table as it is, for kernels that read no gradients."""
        if _is_capturing(self._device):
            self._captured.append(self._table)
        return self._table

    def with_gradients(self, addresses: list[int]) -> tuple[Tensor, bool]:
        """The table for gradients at these addresses (0: no gradient), and whether all addresses are 16 byte aligned."""
        capturing = _is_capturing(self._device)
        if not capturing and self._spare is None:
            self._spare = self._pinned(self._rows(addresses))
        if addresses == self._sent:
            if capturing:
                self._captured.append(self._table)
            return self._table, self._sent_aligned
        aligned = self.is_aligned and all(address % 16 == 0 for address in addresses)
        if capturing:
            return self._for_graph(addresses), aligned
        if any(self._table is table for table in self._captured):
            self._table = self._table.clone()
        # The pinned tensor may be dropped at once: its allocator waits for the copy before reusing the memory.
        self._table[1].copy_(self._pinned(torch.tensor(addresses, dtype=torch.int64)), non_blocking=True)
        self._sent, self._sent_aligned = addresses, aligned
        return self._table, aligned

    def _for_graph(self, addresses: list[int]) -> Tensor:
        # Pinned memory cannot be allocated during a capture, so a spare buffer is allocated beforehand.
        host = self._graph_buffers.get(tuple(addresses))
        if host is None:
            if self._spare is None:
                raise ConfigError("Take one step outside of graphs between two captures of the same optimizer")
            host, self._spare = self._spare, None
            self._graph_buffers[tuple(addresses)] = host.copy_(self._rows(addresses))
        table = torch.empty_like(self._table)
        table.copy_(host, non_blocking=True)
        self._captured.append(table)
        return table

    def _rows(self, addresses: list[int]) -> Tensor:
        first, *rest = self._fixed
        return torch.tensor([first, addresses, *rest], dtype=torch.int64)

    def _pinned(self, tensor: Tensor) -> Tensor:
        return tensor.pin_memory() if self._device.type == "cuda" else tensor


def _is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
