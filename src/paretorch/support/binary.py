"""Binary floating-point numbers: powers of two and digits."""

import math

import torch
from torch import Tensor


def power_of_two(exponent: Tensor) -> Tensor:
    """Return 2^exponent (−126 … 127), exact, by writing the exponent bits of an fp32 number."""
    return ((exponent.to(torch.int32) + 127) << 23).view(torch.float32)


def digits(dtype: torch.dtype) -> int:
    """Return the binary digits of a number of this dtype: 24 for fp32, 11 for fp16, 8 for bf16."""
    return 1 - round(math.log2(torch.finfo(dtype).eps))
