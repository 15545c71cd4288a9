"""Decisions are fp32 whatever the model is, those that many weights share as well."""

import copy

import pytest
import torch
from torch import nn

from paretorch import ContinuousSparsification, Plan, compress
from paretorch.core.method import Method
from tests.core.tiny import batch, small_net, train

METHODS = {
    "channels": ContinuousSparsification(target=0.3, group="channel"),
    "network": ContinuousSparsification(target=0.0, group="network"),
}


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_shared_decisions_stay_when_the_model_changes_its_dtype(
    method: Method, dtype: torch.dtype, copied: bool
) -> None:
    model = small_net()
    plan = compress(model, method, steps=4, example=batch())
    with torch.no_grad():
        model.paretorch_sparsity_shared.uniform_()
    before = model.paretorch_sparsity_shared.detach().clone()
    if copied:
        model = copy.deepcopy(model)
        plan = Plan.of(model)
    nn.Sequential(model).to(dtype)
    assert model[4].bias.dtype == dtype
    assert torch.equal(model.paretorch_sparsity_shared, before)
    train(plan, torch.optim.SGD(plan.param_groups(), lr=0.01), batch().to(dtype), 4)
    plan.harden()
    model.eval()
    expected = model(batch().to(dtype))
    small = plan.finalize()
    assert torch.allclose(small(batch().to(dtype)), expected, rtol=1e-2, atol=1e-2)
    assert small.float()[4].bias.dtype == torch.float32
    assert "_apply" not in vars(small)
