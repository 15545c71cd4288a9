"""Going on from a state: what is the same plan, and what of the decisions' optimizers goes over."""

from typing import Any

import pytest
import torch
from torch import nn

from paretorch import ContinuousSparsification, compress
from paretorch.errors import ConfigError

from .tiny import small_net

OPTIONS: dict[str, Any] = {
    "predicates in a list": lambda: {"exclude": ["4", lambda name, module: name == "5"]},
    "a function in overrides": lambda: {"overrides": {"4": {"group": lambda name, w: torch.ones_like(w).long()}}},
}


@pytest.mark.parametrize("make", OPTIONS.values(), ids=OPTIONS.keys())
def test_functions_among_options_are_the_same_in_another_process(make: Any) -> None:
    def begun(**options: Any) -> nn.Module:
        model = small_net()
        compress(model, ContinuousSparsification(target=0.5, **{**make(), **options}), steps=4)
        return model

    state = begun().state_dict()
    begun().load_state_dict(state)
    with pytest.raises(ConfigError, match=r"init was 0\.0, is 0\.1"):
        begun(init=0.1).load_state_dict(state)
