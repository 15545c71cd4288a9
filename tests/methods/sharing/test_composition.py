"""Sharing beside the rivals of the other kinds: masks and precisions of any method sit on the templates."""

import warnings

import pytest
import torch

from paretorch import SoftSharing, compress, fold
from paretorch.methods.precision import rivals as quantizers
from paretorch.methods.sparsity import rivals as pruners
from tests.contract.loop import optimizer_of, train
from tests.methods.sharing.cases import batch, build

PRUNERS = [name for name in pruners.__all__ if isinstance(getattr(pruners, name), type)]
QUANTIZERS = [name for name in quantizers.__all__ if name not in ("PACTActivations", "first_and_last")]


@pytest.mark.parametrize("name", PRUNERS + QUANTIZERS)
def test_a_rival_acts_on_the_templates(name: str) -> None:
    method = getattr(pruners, name)(target=0.5) if name in PRUNERS else getattr(quantizers, name)(bits=3)
    network = build("linear")
    plan = compress(network, SoftSharing(templates=2), method, steps=6)
    optimizer = optimizer_of(plan)
    train(network, plan, optimizer, batch("linear"), 6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan.harden(optimizer)
    expected = network.eval()(batch("linear"))
    small = fold(network, threshold=1.0)
    torch.testing.assert_close(small(batch("linear")), expected, rtol=1e-5, atol=1e-6)
    stored = torch.stack([value for key, value in small.state_dict().items() if key.startswith("shared_0")])
    if name in PRUNERS:
        assert (stored == 0).any()
    else:
        assert stored.unique().numel() < stored.numel() / 2
