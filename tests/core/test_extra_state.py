"""A model whose modules keep extra state, which may be no tensor, beside their parameters."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paretorch import ContinuousSparsification, compress
from paretorch.errors import ConfigError

from .tiny import train


class _Counting(nn.Linear):
    seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        return super().forward(x)

    def get_extra_state(self) -> dict[str, int]:
        return {"seen": self.seen}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.seen = state["seen"]


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(_Counting(6, 8), nn.ReLU(), _Counting(8, 3))


@pytest.mark.parametrize("options", [{}, {"group": "channel"}], ids=["weights", "channels"])
def test_it_stays(options: dict[str, Any]) -> None:
    model, x = _net(), torch.randn(5, 6)
    plan = compress(model, ContinuousSparsification(target=0.5, **options), steps=4, example=x if options else None)
    train(plan, torch.optim.SGD(plan.param_groups(), lr=0.05), x, 4)
    plan.harden()
    state = plan.dense_state_dict()
    assert state.keys() == _net().state_dict().keys()
    fresh = _net()
    fresh.load_state_dict(state)
    assert fresh[0].seen == model[0].seen > 0
    outputs = model.eval()(x)
    torch.testing.assert_close(plan.finalize()(x), outputs)


def test_a_file_cannot_hold_it_which_a_budget_says_before_training() -> None:
    with pytest.raises(ConfigError, match="_extra_state is a dict; an artefact holds tensors only"):
        compress(_net(), ContinuousSparsification(), steps=4, budget=1_000)
