"""The multi-tensor update: as many operations for a hundred tensors as for two."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from paretorch.optim.kernels import foreach

from .common import KINDS, build


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


@pytest.mark.parametrize("kind", KINDS)
def test_large_networks_are_stepped_in_batches_to_the_same_bits(kind, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [4, 3, 9, 1, 2, 0, 5]
    found = []
    for longest in (1 << 22, 7):
        monkeypatch.setattr(foreach, "MAX_BATCH_ON_CPU", longest)
        generator = torch.Generator().manual_seed(1)
        params = [torch.randn(size, generator=generator).requires_grad_() for size in sizes]
        optimizer = build(kind, params, foreach=True)
        for _ in range(3):
            for p in params:
                p.grad = torch.randn(p.shape, generator=generator)
            optimizer.step()
        found.append(torch.cat([p.detach() for p in params]))
    assert torch.equal(*found)


def test_batches_hold_at_most_so_many_elements_unless_one_tensor_has_more() -> None:
    assert foreach._batches([4, 3, 9, 1, 2, 0, 5], 7) == [[0, 1], [2], [3, 4, 5], [6]]
    assert foreach._batches([4, 3], 0) == [[0], [1]]
    assert foreach._batches([], 7) == []
