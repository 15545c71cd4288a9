"""The number of steps taken: one tensor per device, shared by the states of all parameters."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from paretorch.optim.kernels.leaf import Leaf
from paretorch.optim.rule import Scalar


class Clock:
    """Counts on the host, or on the device where a captured graph must be able to count by itself.

    Every parameter's state shows the same count under `step`, as the states of torch.optim do.
    """

    def __init__(self, leaves: list[tuple[Leaf, bool]]) -> None:
        known = [float(leaf.state["step"]) for leaf, _ in leaves if "step" in leaf.state]
        start = max(known, default=0.0)
        self._counts: dict[torch.device, Tensor] = {}
        self._leaves = [leaf for leaf, _ in leaves]
        for leaf, on_device in leaves:
            device = leaf.p.device
            if device not in self._counts:
                home = device if on_device else torch.device("cpu")
                self._counts[device] = torch.full((), start, dtype=torch.float32, device=home)
            leaf.state["step"] = self._counts[device]

    def tick(self, skipped: Tensor | None, left: Collection[torch.device] = ()) -> dict[torch.device, Scalar]:
        """Advance (not where a gradient scaler found infinities) and say what time it is, per device.

        The counts that lie on the devices in `left` are left as they are: the kernel will advance them.
        """
        if skipped is not None:
            self._move_to_devices()
        now: dict[torch.device, Scalar] = {}
        for device, count in self._counts.items():
            if device in left and count.device == device:
                now[device] = count
                continue
            count += 1 if skipped is None else 1 - skipped.to(count.device, count.dtype).reshape(())
            now[device] = float(count) if count.device.type == "cpu" else count
        return now

    def _move_to_devices(self) -> None:
        # Whether the step is skipped is known there alone, and the host should not have to ask.
        if all(count.device == device for device, count in self._counts.items()):
            return
        self._counts = {device: count.to(device) for device, count in self._counts.items()}
        for leaf in self._leaves:
            leaf.state["step"] = self._counts[leaf.p.device]
