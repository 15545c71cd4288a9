"""Claim: on the problem of thesis section 6.5.1 Adam does not converge; Delayed Adam, AMSGrad and Adam with ε = t^1.5 do.

min over w in [0, 1] of E[f_s(w)], f_s = 999 w²/2 with probability 1/500, else −w; β₁ = 0, β₂ = 0.99, ε = 1e-8, w projected to
[0, 1] after every step. The expected gradient is f'(w) = (999 w − 499)/500, zero at w* = 499/999. In Adam a rare, large gradient
makes its own step small, so w drifts to 1. What differs from the thesis: torch's Adam and AMSGrad correct the bias, which has no
effect after some hundred steps, and the learning rates, which it does not print, are chosen here (for 100,000 steps; they scale
as 1/√T). Shown is (1/t) Σ f'(w)², the running mean of the expected gradient's square, for five seeds.

    python benchmarks/optimizer_synthetic.py --out results/optimizers-synthetic        # some minutes on one CPU core
"""

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Adam, Optimizer

from paretorch.errors import ConfigError
from paretorch.optim import AnnealedAdam, DelayedAdam
from paretorch.report.charts import Curve, curves
from paretorch.report.markup import save
from paretorch.training.folder import environment

OPTIMUM = 499 / 999
_BETAS = (0.0, 0.99)
_EPS = 1e-8
_RARE_PROBABILITY = 1 / 500

METHODS: dict[str, Callable[[Tensor, int], Optimizer]] = {
    "Adam": lambda w, steps: Adam([w], lr=_rate(0.03, steps), betas=_BETAS, eps=_EPS, foreach=False),
    "AMSGrad": lambda w, steps: Adam([w], lr=_rate(0.3, steps), betas=_BETAS, eps=_EPS, amsgrad=True, foreach=False),
    "Delayed Adam": lambda w, steps: DelayedAdam([w], lr=_rate(0.03, steps), betas=_BETAS, eps=_EPS),
    "Adam, ε = t^1.5": lambda w, steps: AnnealedAdam([w], steps, lr=0.01, betas=_BETAS, eps=1.0, powers=(0.0, 1.5)),
}


@dataclass(frozen=True)
class Run:
    """The runs of one method. Rows of `gradient` and `w` belong to `steps`, columns to seeds."""

    steps: NDArray[np.int64]
    gradient: NDArray[np.float64]
    """Running mean of the squared expected gradient."""
    w: NDArray[np.float64]


def run(
    steps: int = 100_000, seeds: Sequence[int] = range(5), methods: Sequence[str] | None = None, points: int = 100
) -> dict[str, Run]:
    """Run the methods from w = 0 and return their curves.

    Args:
        steps: length of a run.
        seeds: one run each. All runs are coordinates of one vector, since these methods treat coordinates independently.
        methods: keys of `METHODS`; all by default.
        points: about how many steps, spaced logarithmically, a curve has.
    """
    chosen = list(METHODS) if methods is None else list(methods)
    unknown = [name for name in chosen if name not in METHODS]
    if unknown:
        raise ConfigError(f"Unknown methods {unknown}: choose from {list(METHODS)}")
    if steps < 1 or points < 1 or not len(seeds):
        raise ConfigError("The synthetic problem needs at least one step, one point and one seed")
    is_rare = [torch.rand(steps, generator=torch.Generator().manual_seed(seed)) < _RARE_PROBABILITY for seed in seeds]
    rare = torch.stack(is_rare, dim=1)
    return {name: _curve(METHODS[name], rare, points) for name in chosen}


def _curve(build: Callable[[Tensor, int], Optimizer], rare: Tensor, points: int) -> Run:
    steps, seeds = rare.shape
    w = torch.zeros(seeds, dtype=torch.float64, requires_grad=True)
    optimizer = build(w, steps)
    recorded = set(np.unique(np.geomspace(1, steps, points).round().astype(np.int64)).tolist())
    total = torch.zeros(seeds, dtype=torch.float64)
    rows: list[tuple[int, Tensor, Tensor]] = []
    for t in range(1, steps + 1):
        with torch.no_grad():
            total += ((999 * w - 499) / 500).square()
            w.grad = torch.where(rare[t - 1], 999 * w, -1.0)
            optimizer.step()
            w.clamp_(0, 1)
        if t in recorded:
            rows.append((t, total / t, w.detach().clone()))
    times, gradients, positions = zip(*rows, strict=True)
    return Run(np.array(times), torch.stack(gradients).numpy(), torch.stack(positions).numpy())


def _rate(numerator: float, steps: int) -> float:
    """α = α'/√T, as in theorem "dadamconv"."""
    return numerator / math.sqrt(steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="folder for raw.json and figure.svg")
    args = parser.parse_args()
    found = run(args.steps, range(args.seeds))
    print(f"{args.steps} steps, {args.seeds} seeds, w* = {OPTIMUM:.4f}")
    print(f"{'':20}{'mean f´(w)², ends at':>24}{'least and greatest':>24}{'w at the end, by seed':>40}")
    for name, curve in found.items():
        last = curve.gradient[-1]
        places = " ".join(f"{w:.3f}" for w in curve.w[-1])
        print(f"{name:20}{last.mean():>24.4f}{f'{last.min():.4f} - {last.max():.4f}':>24}{places:>40}")
    if args.out is None:
        return
    args.out.mkdir(parents=True, exist_ok=True)
    content = {
        **environment(torch.device("cpu")),
        "optimum": OPTIMUM,
        "seeds": list(range(args.seeds)),
        "curves": {
            name: {"steps": curve.steps.tolist(), "gradient": curve.gradient.tolist(), "w": curve.w.tolist()}
            for name, curve in found.items()
        },
    }
    (args.out / "raw.json").write_text(json.dumps(content) + "\n")
    series = {
        name: Curve(c.steps, c.gradient.mean(1), c.gradient.min(1), c.gradient.max(1)) for name, c in found.items()
    }
    label = f"running mean of f´(w)²; band: range over {args.seeds} seeds"
    save(curves("The synthetic problem", series, x_label="step", y_label=label, log_x=True), args.out / "figure.svg")


if __name__ == "__main__":
    main()
