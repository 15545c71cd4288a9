"""The multi-tensor update: as many operations for a hundred tensors as for two."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .test_manners import KINDS, build


class Operations(TorchDispatchMode):
    """Counts what is computed; views cost nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", KINDS)
def test_operations_do_not_grow_with_the_tensors(kind) -> None:
    found = []
    for count in (2, 100):
        params = [torch.ones(3, requires_grad=True) for _ in range(count)]
        for p in params:
            p.grad = torch.ones(3)
        optimizer = build(kind, params, foreach=True, weight_decay=0.1, maximize=True)
        optimizer.step()
        with Operations() as operations:
            optimizer.step()
        found.append(operations.counts)
    assert found[0] == found[1]
    assert 5 < found[0].total() < 60
