"""A plan beside a loop that is not yours: one step after each of the optimizer's, and rounding when its time has come."""

from collections.abc import Iterable
from typing import Any

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
        own = {id(parameter) for parameter in self.plan.model.parameters()}
        self._optimizer = next(
            (o for o in optimizers if own & {id(p) for g in o.param_groups for p in g["params"]}), None
        )
        self._scaler: torch.amp.GradScaler | None = None
        self._rounded = False
        self._taken = int(
            self.plan.metrics()["step"]
        )  # counted here: to ask the device at every step would wait for it

    def after_step(self, optimizer: torch.optim.Optimizer) -> bool:
        """The plan's step, after the optimizer's; the last one of its horizon rounds the decisions.

        Returns whether they have been rounded since the last call.
        """
        if self._scaler is None:
            self._step(optimizer)
        rounded, self._rounded = self._rounded, False
        return rounded

    def _step(self, optimizer: torch.optim.Optimizer) -> None:
        self.plan.step(self._scaler)
        self._taken += 1
        if self._taken >= self.plan.steps and not self.plan.is_hard:
            self.plan.harden(optimizer)
            self._rounded = True

    def follow_scaler(self, scaler: torch.amp.GradScaler) -> None:
        """Step before each update of the scaler, which frameworks call in the same breath as the optimizer's step.

        Gradients of the decisions are scaled as all others, and unscaled by what the update changes. Ended by `leave_scaler`.
        """
        optimizer, update = self._optimizer, scaler.update
        if optimizer is None or not scaler.is_enabled():
            return
        self._scaler = scaler

        def stepped(*args: Any, **kwargs: Any) -> None:
            if (
                id(optimizer) in scaler._per_optimizer_states
            ):  # another optimizer's step may have come before this update
                self._step(optimizer)
            update(*args, **kwargs)

        scaler.__dict__["update"] = stepped  # found before the method of its class

    def leave_scaler(self) -> None:
        """Leave the scaler as it was."""
        if self._scaler is not None:
            self._scaler.__dict__.pop("update", None)
            self._scaler = None
