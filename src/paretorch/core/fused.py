"""The plan's own arithmetic, compiled on a GPU: one kernel a tensor instead of one an operation."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch


@functools.cache
def fused(function: Callable[..., None]) -> Callable[..., None]:
    """The function under `torch.compile`, or as it is where no compiler works."""
    compiled = torch.compile(function, dynamic=False)
    usable = True

    def call(*arguments: Any) -> None:
        nonlocal usable
        if usable:
            try:
                compiled(*arguments)
                return
            except torch._dynamo.exc.TorchDynamoException as error:
                usable = False
                warnings.warn(
                    f"paretorch: torch.compile does not work here, steps will be slower: {error}", stacklevel=2
                )
        function(*arguments)

    return call
