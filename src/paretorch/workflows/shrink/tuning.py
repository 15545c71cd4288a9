"""Training of coded weights by distillation, within the budget: AvaGradW, a rate found by a line search, μ that follows the bytes.

Rates are in steps Δ per training step: at rate δ the latents move by δ steps of their grid at each step, as a root mean square, if
gradients do not change. So one ladder of rates serves all networks, losses and precisions. AvaGrad's rate and its ε are separable, so that
ε is fixed (a share of the root mean square of the gradients) and one line search over the rate is enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from paretorch.errors import DivergenceError
from paretorch.optim import AvaGradW
from paretorch.support.inputs import ModelCall
from paretorch.workflows.shrink.coded import MU, CodedWeights
from paretorch.workflows.shrink.formatted import FormattedWeights
from paretorch.workflows.shrink.objective import Objective

RATES = (0.0004, 0.001, 0.0025, 0.006, 0.016, 0.04)
_FIRST = 2  # the place in RATES where the search begins
_TRIAL_SHARE, _LEAST_TRIAL, _MOST_TRIAL = 0.05, 4, 24  # steps of one trial: a share of all, and bounds
_MEASURED = 4  # batches that measure gradients
_EPS = 0.1  # of the root mean square of the gradients
_BETAS = (0.9, 0.99)
_WARM_UP = 0.03  # share of the steps
_FOLLOW = 10  # steps between two looks at the bytes
_METERED = (
    0.0,
    0.5,
)  # shares of the steps after which the file is measured: the first step changes all norms and biases
_WORSE = 8.0  # times the least average loss: training has gone astray
_SMOOTH = 0.2  # of a new loss in the average
_KEPT = 20  # times in a training that weights are kept to come back to
_RETREATS, _LOWER = 5, 0.4  # how often training comes back, and by what it lowers the rate then
_PROBE, _MOST_CHANGE = 1.1, 0.3  # of μ, to see what it does; of ln μ
_MU_RANGE = (MU / 256, 64 * MU)


class Tuner:
    """Trains a student on its coded weights.

    Args:
        coded: Its weights, as codes that follow a price, or in the formats of a runtime.
        aim: The bytes that the file should have.
        meter: Bytes of the student's file, as it would be if training ended now.
    """

    def __init__(
        self,
        student: nn.Module,
        coded: CodedWeights | FormattedWeights,
        objective: Objective,
        aim: float,
        meter: Callable[[], int],
    ) -> None:
        self.student, self.coded, self.objective, self.aim, self._meter = student, coded, objective, aim, meter
        self.done = 0
        """Steps taken."""
        self.loss = math.nan
        """Of the last step."""
        self.rate = 0.0
        """The rate now: lower than it was begun with if training went astray."""
        self._mean = self._least = math.inf
        self._retreats = 0
        self._safe: dict[str, Any] = {}
        student.requires_grad_(False)
        for one in (*(weight.weight for weight in coded.weights.values()), *coded.others):
            one.requires_grad_(True)
        # The student is in evaluation mode, without dropout, and cuDNN has no backward pass of a recurrent layer in that mode.
        recurrent = any(isinstance(module, nn.RNNBase) for module in student.modules())
        self._cudnn = torch.backends.cudnn.enabled and not recurrent
        self._scale, self._eps = 1.0, 1.0
        self._optimizer: AvaGradW | None = None

    def measure(self, calls: Sequence[ModelCall]) -> None:
        """Learn the size of the gradients, which sets ε and the unit of rates."""
        squares = [torch.zeros_like(p) for p in self.coded.parameters()]
        few = calls[:_MEASURED]
        for call in few:
            self._backward(call)
            for p, square in zip(self.coded.parameters(), squares, strict=True):
                if p.grad is not None:
                    square += p.grad.square() / len(few)
        self._clear()
        count = sum(square.numel() for square in squares)
        self._eps = max(_EPS * math.sqrt(sum(float(square.sum()) for square in squares) / count), 1e-12)
        steps = {id(one.latent): one.steps for one in self.coded.weights.values()}
        inverse = moved = latents = 0.0
        for p, square in zip(self.coded.parameters(), squares, strict=True):
            eta = 1 / (square.sqrt() + self._eps)
            inverse += float(eta.square().sum())
            if id(p) in steps:
                moved += float((square.sqrt() * eta / steps[id(p)]).square().sum())
                latents += p.numel()
        self._scale = math.sqrt(inverse / count) / max(math.sqrt(moved / latents), 1e-30)

    def search(
        self, calls: Sequence[ModelCall], held_out: Sequence[ModelCall], steps: int, on_step: Callable[[], None]
    ) -> float:
        """Return the rate that brings the student nearest to the dense network in a short trial, and 0.0 if none does."""
        length = trial_length(steps)
        before = self.coded.copy_state()
        found: dict[int, float] = {}

        def trial(place: int) -> float:
            if not 0 <= place < len(RATES):
                return math.inf
            if place not in found:
                try:
                    self.begin(RATES[place])
                    for call in _cycle(calls, length):
                        self._train(call, 1.0)
                        on_step()
                    self.coded.write()
                    found[place] = self.objective.distance(self.student, held_out)
                except DivergenceError:
                    found[place] = math.inf
                self.coded.load(before)
                self._optimizer, self.done = None, 0
            return found[place]

        place = _FIRST
        way = 1 if trial(place + 1) < trial(place) else -1
        while trial(place + way) < trial(place):
            place += way
        return RATES[place] if math.isfinite(trial(place)) else 0.0

    def begin(self, rate: float) -> None:
        """Make the optimizer."""
        self.rate = rate
        self._optimizer = AvaGradW(
            self.coded.parameters(), lr=rate * self._scale, betas=_BETAS, eps=self._eps, weight_decay=0.0
        )
        for group in self._optimizer.param_groups:
            group["top_lr"] = group["lr"]

    def run(self, calls: Iterable[ModelCall], steps: int, after: Callable[[], None]) -> None:
        """Take the steps from `done` to `steps`."""
        for call in calls:
            try:
                self._train(call, _schedule(self.done, steps))
                self._watch(steps)
            except DivergenceError:
                self._retreat()
            self.done += 1
            if self.done in {max(1, round(share * steps)) for share in _METERED}:
                self.coded.write()
                self.coded.learn_size(self._meter())
            if self.done % _FOLLOW == 0 or self.done == 1:
                self._follow_bytes()
            after()
        self.coded.write()

    def _watch(self, steps: int) -> None:
        """Keep weights of which the loss is low, and raise if it is far above that."""
        if self._mean == math.inf:  # the first loss is that of the rounded network
            self._mean = self._least = self.loss
            self._safe = self.coded.copy_state()
        self._mean += _SMOOTH * (self.loss - self._mean)
        if self._mean > _WORSE * self._least:
            raise DivergenceError(f"The loss is {self._mean / self._least:.3g} times what it was")
        if self.done % max(1, steps // _KEPT) == 0 and self._mean < self._least:
            self._least, self._safe = self._mean, self.coded.copy_state()

    def _retreat(self) -> None:
        """Go back to weights of a low loss, with a lower rate; raises if that has not helped before."""
        self._retreats += 1
        if self._retreats > _RETREATS or not self._safe:
            raise DivergenceError(f"The loss is {self.loss} after {self.done} steps: the batch may hold extreme values")
        self.coded.load(self._safe)
        self._mean = self._least
        self.begin(_LOWER * self.rate)

    def _train(self, call: ModelCall, factor: float) -> None:
        assert self._optimizer is not None
        for group in self._optimizer.param_groups:
            group["lr"] = group["top_lr"] * factor
        self.coded.write()
        self._backward(call)
        self._optimizer.step()
        self._clear()

    def _backward(self, call: ModelCall) -> None:
        with torch.backends.cudnn.flags(enabled=self._cudnn):
            loss = self.objective.loss(call, self.student)
            self.loss = float(loss.detach())
            if not math.isfinite(self.loss):
                raise DivergenceError(
                    f"The loss is {self.loss} after {self.done} steps: the batch may hold extreme values"
                )
            loss.backward()
        self.coded.pull()

    def _clear(self) -> None:
        for p in self.coded.parameters():
            p.grad = None

    def _follow_bytes(self) -> None:
        """One step of Newton's method in ln μ towards the bytes that are aimed for, of bounded length."""
        if isinstance(self.coded, FormattedWeights):
            return
        now, mu = self.coded.expected(), self.coded.mu
        self.coded.mu = mu * _PROBE
        slope = (self.coded.expected() - now) / math.log(_PROBE)
        change = _MOST_CHANGE if now > self.aim else -_MOST_CHANGE
        if slope < 0.0:
            change = min(max((self.aim - now) / slope, -_MOST_CHANGE), _MOST_CHANGE)
        self.coded.mu = min(max(mu * math.exp(change), _MU_RANGE[0]), _MU_RANGE[1])

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        assert self._optimizer is not None
        return {
            "done": self.done,
            "scale": self._scale,
            "eps": self._eps,
            "coded": self.coded.state(),
            "optimizer": self._optimizer.state_dict(),
            "rate": self.rate,
            "watch": (self._mean, self._least, self._retreats),
            "safe": self._safe,
        }

    def load(self, state: dict[str, Any], rate: float) -> None:
        """Go on from a checkpoint."""
        self.done, self._scale, self._eps = state["done"], state["scale"], state["eps"]
        self.coded.load(state["coded"])
        self.begin(state.get("rate", rate))
        self._mean, self._least, self._retreats = state.get("watch", (math.inf, math.inf, 0))
        self._safe = state.get("safe", {})
        assert self._optimizer is not None
        self._optimizer.load_state_dict(state["optimizer"])


def trial_length(steps: int) -> int:
    """Return the steps of one trial of the line search."""
    return min(max(round(_TRIAL_SHARE * steps), _LEAST_TRIAL), _MOST_TRIAL, steps)


def _schedule(step: int, steps: int) -> float:
    """Return the factor of the rate: a short warm-up, then half a cosine to zero."""
    rise = min(1.0, (step + 1) / max(1.0, _WARM_UP * steps))
    return rise * 0.5 * (1.0 + math.cos(math.pi * step / steps))


def _cycle(calls: Sequence[ModelCall], count: int) -> Iterator[ModelCall]:
    for i in range(count):
        yield calls[i % len(calls)]
