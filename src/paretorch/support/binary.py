"""Binary floating-point numbers: powers of two and digits."""

import math

import torch
from torch import Tensor


def power_of_two(exponent: Tensor) -> Tensor:
    """2^exponent, exact, by writing the exponent bits of an fp32 number (−126 … 127)."""
    return ((exponent.to(torch.int32) + 127) << 23).view(torch.float32)


def digits(dtype: torch.dtype) -> int:
    """The binary digits of a number of this dtype: 24 of fp32, 11 of fp16, 8 of bf16."""
    return 1 - round(math.log2(torch.finfo(dtype).eps))
