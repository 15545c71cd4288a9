"""Claim: on the problem of thesis section 6.5.1 Adam does not converge; Delayed Adam, AMSGrad and Adam with ε = t^1.5 do.

min over w in [0, 1] of E[f_s(w)], f_s = 999 w²/2 with probability 1/500, else −w; β₁ = 0, β₂ = 0.99, ε = 1e-8, w projected to
[0, 1] after every step. Shown is (1/t) Σ f'(w)², the running mean of the expected gradient's square, for five seeds.

    python benchmarks/optimizer_synthetic.py --out results/optimizers-synthetic        # some minutes on one CPU core
"""

import argparse
import json
from pathlib import Path

import torch

from paretorch.optim import synthetic
from paretorch.report.charts import Curve, curves
from paretorch.report.files import save
from paretorch.training.folder import environment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="folder for raw.json and figure.svg")
    args = parser.parse_args()
    found = synthetic.run(args.steps, range(args.seeds))
    print(f"{args.steps} steps, {args.seeds} seeds, w* = {synthetic.OPTIMUM:.4f}")
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
        "optimum": synthetic.OPTIMUM,
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
