"""Batch norms whose statistics are over the batch of all ranks, against torch's own over that batch."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from paretorch.training.ranks import Ranks, over_all_ranks


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_statistics_are_in_the_precision_of_the_network(
    dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ranks have the same rows, so that each sum over ranks is twice this rank's part."""
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda part, *args, **options: part.mul_(2))
    torch.manual_seed(0)
    whole = nn.BatchNorm2d(3).to(dtype)
    part = deepcopy(whole)
    rows, slopes = (torch.randn(4, 3, 5, 5, dtype=dtype) for _ in range(2))
    own, both = rows.clone().requires_grad_(), torch.cat([rows, rows]).requires_grad_()
    with over_all_ranks(part, Ranks(0, 2)):
        found = part(own)
        (found * slopes).sum().backward()
    expected = whole(both)
    (expected * torch.cat([slopes, slopes])).sum().backward()
    assert both.grad is not None
    pairs = [(found, expected[:4]), (own.grad, both.grad[:4]), (part.running_mean, whole.running_mean)]
    for one, other in [*pairs, (part.running_var, whole.running_var)]:
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
