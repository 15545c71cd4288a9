"""torch's generators and flags, which are the user's: training seeds and sets them while it runs, and puts them back."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def own_random(device: torch.device) -> Iterator[None]:
    """Inside, seeds and draws from torch's global generators leave no trace outside."""
    before = torch.get_rng_state()
    on_gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        yield
    finally:
        torch.set_rng_state(before)
        if on_gpu is not None:
            torch.cuda.set_rng_state(on_gpu, device)


@contextmanager
def fast_on_gpu(device: torch.device) -> Iterator[None]:
    """Inside, a GPU chooses its convolutions by trial and multiplies in TF32; elsewhere nothing changes."""
    if device.type != "cuda":
        yield
        return
    benchmark, precision = torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision()
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = benchmark
        torch.set_float32_matmul_precision(precision)
