"""An optimizer made of `model.parameters()` trains the decisions too, beside the plan: noticed in the first steps."""

from collections.abc import Sequence

import torch
from torch import Tensor

from paretorch.support.sharded import local
from paretorch.support.warn import warn

_STEPS = 16  # a gradient scaler skips some of the first


class Watch:
    """Whether something else changes the decisions between the plan's steps, by their sums (torch counts writes to a
    tensor, but not those of fused optimizers). A captured step is not looked at: the host must not wait in it.
    """

    def __init__(self) -> None:
        self._left, self._seen = _STEPS, list[str]()

    def __reduce__(self) -> tuple[type["Watch"], tuple[()]]:
        return Watch, ()  # copies may be changed before they are trained

    def before(self, decisions: Sequence[Tensor]) -> None:
        """Before the plan's step; warns once."""
        if self._seen and not _captured() and self._seen != _sums(decisions):
            self._left = 0
            warn(
                "the decisions change between the steps of the plan, which trains them itself: make the optimizer of "
                "plan.param_groups(), not of model.parameters()"
            )

    def after(self, decisions: Sequence[Tensor]) -> None:
        """After it."""
        self._left -= self._left > 0
        self._seen = _sums(decisions) if self._left and not _captured() else []

    def forget(self) -> None:
        """The plan itself, or a state that was loaded, has written to them."""
        self._seen = []


def _captured() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _sums(decisions: Sequence[Tensor]) -> list[str]:
    """In words, so that a nan is like another."""
    return [str(float(local(decision).detach().sum(dtype=torch.float64))) for decision in decisions]
