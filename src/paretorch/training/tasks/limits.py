"""What a task asks of the loop beside the protocol: no replay, no compiler, a place for what it carries, a picture, clipping."""

from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from paretorch.training.runtime import Runtime
from paretorch.training.task import Task


@runtime_checkable
class Carrying(Protocol):
    """A task that keeps something on the model from step to step."""

    def attach(self, model: nn.Module) -> None:
        """Before training, and before a checkpoint is loaded."""
        ...

    def release(self, model: nn.Module) -> None:
        """After training."""
        ...


@runtime_checkable
class Drawing(Protocol):
    """A task whose network makes images."""

    def draw(self, model: nn.Module) -> Tensor:
        """What a network on the CPU makes, as one picture: bytes [channels, height, width], the same every time."""
        ...


def suited(runtime: Runtime, task: Task) -> Runtime:
    """The runtime without what the task cannot have: see `fixed_shapes` and `compiles` in `Task`."""
    fixed, compiles = getattr(task, "fixed_shapes", True), getattr(task, "compiles", True)
    return replace(runtime, graph=runtime.graph and fixed, compile=runtime.compile if compiles else False)


def clip_gradients(optimizer: torch.optim.Optimizer, norm: float) -> RemovableHandle:
    """From now on, scale the gradient of all weights together down to `norm` before each step.

    The optimizer holds the weights alone: the plan's decisions are not clipped. Nothing is read on the host, so that
    the step can be captured. `remove()` of what is returned ends it.
    """

    def clip(stepping: torch.optim.Optimizer, args: Any, options: Any) -> None:
        weights = [weight for group in stepping.param_groups for weight in group["params"]]
        torch.nn.utils.clip_grad_norm_(weights, norm)

    return optimizer.register_step_pre_hook(clip)
