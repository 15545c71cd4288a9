"""A plan beside a loop that is not yours: one step after each of the optimizer's, and rounding when its time has come."""

from collections.abc import Iterable

import torch
from torch import nn

from paretorch.core.plan import Plan, plans_of
from paretorch.errors import ConfigError


class PlanStepper:
    """What every framework's callback does; the plan is found on the model."""

    def __init__(self, model: nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        optimizers = list(optimizers)
        held = {id(one) for optimizer in optimizers for group in optimizer.param_groups for one in group["params"]}
        # An average of the model that is trained has a plan, too, and is not trained.
        plans = [plan for plan in plans_of(model) if not held.isdisjoint(map(id, plan.model.parameters()))]
        if len(plans) > 1:
            raise ConfigError(
                "two networks with plans are trained, and a callback follows one: compress both as one module"
            )
        self.plan = plans[0] if plans else Plan.of(model)
        self._taken = int(
            self.plan.metrics()["step"]
        )  # counted here: to ask the device at every step would wait for it

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """The plan's step, after the optimizer's; the last one of its horizon rounds the decisions."""
        self.plan.step()
        self._taken += 1
        if self._taken >= self.plan.steps and not self.plan.is_hard:
            self.plan.harden(optimizer)
