"""Several samples of the noise a step: the K of Definition 5.5, whose Algorithm 5 has K = 1.

    1/K Σ_k L(f(w + σ(s) ⊙ ε⁽ᵏ⁾)) + λ Σ p

    for _ in noise_samples(model, 4):
        (criterion(model(x), y) / 4).backward()
    optimizer.step(); plan.step(); optimizer.zero_grad()

Gradients add up over the passes and the price comes once, in `plan.step()`. K passes cost K times as much; K parts of a
batch, one a pass, cost what the batch does (`pare train --set 'precision_options={"samples": 4}'` takes these; batch norm
then sees a part at a time). Noise of activations, and the masks of stochastic rivals, are drawn anew too.
"""

from collections.abc import Iterator

from torch import nn

from paretorch.core.plan import Plan
from paretorch.core.state import MOST_SAMPLES
from paretorch.errors import ConfigError
from paretorch.support.checks import require_number

MOST = MOST_SAMPLES


def noise_samples(model: nn.Module, count: int) -> Iterator[int]:
    """Yield 0, 1, … count − 1, with noise of its own for each; the first is what a step without samples has."""
    require_number("count", count, 1, MOST, f"give a whole number of samples from 1 to {MOST}")
    if count != int(count):
        raise ConfigError(f"count={count!r}: give a whole number of samples from 1 to {MOST}")
    return _samples(Plan.of(model), int(count))


def _samples(plan: Plan, count: int) -> Iterator[int]:
    start = plan.step_on_host()
    for number in range(count):
        with plan.noise_sample(number):
            yield number
        if start is not None and plan.step_on_host() != start:
            raise ConfigError("plan.step() was called between two samples: call it once, after the loop over them")
