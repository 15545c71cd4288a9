"""States of version 0.1.0, in which weights were parametrized, go on in this one.

golden/states-0.1.0.pt holds, for some cases of the contract, the states of model, plan and optimizer after a few steps, and the losses of the
three steps after them, as version 0.1.0 computed them.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.contract.cases import MODELS, attach, build
from tests.contract.loop import optimizer_of, train

GOLDEN: dict[str, Any] = torch.load(Path(__file__).parent / "golden" / "states-0.1.0.pt", weights_only=True)


@pytest.mark.filterwarnings("ignore::paretorch.errors.MissedTargetWarning")
@pytest.mark.parametrize("case", list(GOLDEN))
def test_training_goes_on_with_the_same_losses(case: str) -> None:
    method, model, phase = case.split()
    saved, x = GOLDEN[case], MODELS[model].batch(6)
    network = build(model, seed=1)
    plan = attach(network, method, model)
    optimizer = optimizer_of(plan)
    network.load_state_dict(saved["model"])
    plan.load_state_dict(saved["plan"])
    optimizer.load_state_dict(saved["optimizer"])
    assert plan.is_hard == (phase == "hard")
    torch.testing.assert_close(train(network, plan, optimizer, x, 3), saved["losses"], rtol=1e-4, atol=1e-5)
