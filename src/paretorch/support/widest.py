"""The widest floating-point numbers of a device: float64, but for Apple's GPUs (`mps`), which have float32 and no wider ones."""

import torch
from torch import Tensor


def has_float64(device: torch.device) -> bool:
    """Whether the device has numbers of 64 bits."""
    return device.type != "mps"


def widest_float(device: torch.device) -> torch.dtype:
    """The widest floating-point dtype of the device, for sums that stay there."""
    return torch.float64 if has_float64(device) else torch.float32


def widened(tensor: Tensor) -> Tensor:
    """The tensor in the widest dtype of its device, where it stays: for elementwise work and for sums."""
    return tensor.to(widest_float(tensor.device))


def exact(tensor: Tensor) -> Tensor:
    """The tensor in float64, on the CPU if its device has no such numbers: for what float32 would get wrong."""
    return tensor.double() if has_float64(tensor.device) else tensor.to("cpu", torch.float64)
