"""The addresses of a bucket's tensors, kept on the GPU and sent again only when a gradient has moved."""

from __future__ import annotations

import torch
from torch import Tensor

from paretorch.errors import ConfigError


class AddressTable:
    """Rows p, g, m, v, then lengths and rounding keys, one column per tensor, int64.

    Sending is asynchronous, from pinned memory. A CUDA graph that is captured with the gradients where they were gets the
    table as it is. With others, the copy becomes part of the graph and reads that memory at every replay. Either way the
    table then belongs to the graph, and is never written again.
    """

    def __init__(self, fixed: list[list[int]], device: torch.device) -> None:
        """`fixed` are all rows but the second, which holds the addresses of the gradients."""
        self._fixed, self._device = fixed, device
        self._columns = len(fixed[0])
        self._aligned = all(address % 16 == 0 for row in fixed[:3] for address in row)
        self._known = [0] * self._columns
        self._known_aligned = self._aligned
        self._table = self._pinned(self._rows(self._known)).to(device)
        self._spare: Tensor | None = None
        self._hosts: dict[tuple[int, ...], Tensor] = {}
        self._captured: list[Tensor] = []

    def with_gradients(self, addresses: list[int]) -> tuple[Tensor, bool]:
        """The table for these gradients (0: none), and whether everything in it is 16 byte aligned."""
        capturing = _capturing(self._device)
        if not capturing and self._spare is None:
            self._spare = self._pinned(self._rows(addresses))
        if addresses == self._known:
            if capturing:
                self._captured.append(self._table)
            return self._table, self._known_aligned
        aligned = self._aligned and all(address % 16 == 0 for address in addresses)
        if capturing:
            return self._for_graph(addresses), aligned
        if any(self._table is table for table in self._captured):
            self._table = torch.empty_like(self._table)
        # The pinned tensor may be dropped at once: its allocator waits for the copy before reusing the memory.
        self._table.copy_(self._pinned(self._rows(addresses)), non_blocking=True)
        self._known, self._known_aligned = addresses, aligned
        return self._table, aligned

    def _for_graph(self, addresses: list[int]) -> Tensor:
        # Pinned memory cannot be allocated during a capture, so that one buffer is always held ready.
        host = self._hosts.get(tuple(addresses))
        if host is None:
            if self._spare is None:
                raise ConfigError("Take one step outside of graphs between two captures of the same optimizer.")
            host, self._spare = self._spare, None
            self._hosts[tuple(addresses)] = host.copy_(self._rows(addresses))
        table = torch.empty_like(self._table)
        table.copy_(host, non_blocking=True)
        self._captured.append(table)
        return table

    def _rows(self, addresses: list[int]) -> Tensor:
        p, *rest = self._fixed
        return torch.tensor([p, addresses, *rest], dtype=torch.int64)

    def _pinned(self, tensor: Tensor) -> Tensor:
        return tensor.pin_memory() if self._device.type == "cuda" else tensor


def _capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
