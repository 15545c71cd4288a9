"""Aim: (α, ε) of AvaGrad are found in a fraction of the trials that Adam needs (thesis section 6.4.3).

Replays searches on the tables that `optimizer_grid.py` recorded: GLD, CGLD, TPE, CMA-ES and random, 100 repetitions each.
The thesis reports, to within 1 % of the best of the grid, 13 trials for AvaGrad with CGLD and 74 for Adam with GLD.

    python benchmarks/optimizer_replay.py results/optimizers-grid/raw.json

Prints how far the best α moves with ε and what tuning costs, and writes beside the raw file: summary.json, a heat map for
each optimizer, the curves of GLD and CGLD, and bars of the trials that all methods need. Needs the extra `tune`.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paretorch.report.charts import Curve, bar_rows, curves
from paretorch.report.markup import save
from paretorch.training.folder import environment
from paretorch.workflows import tuning
from paretorch.workflows.tuning.plots import heat_map

METHODS = {"cgld": "CGLD", "gld": "GLD", "tpe": "TPE", "cmaes": "CMA-ES", "random": "random"}
WITHIN = (0.5, 1.0)


def landscape(grid: dict[str, Any]) -> dict[str, Any]:
    """What the table itself says: its best setting, and how far the best α moves with ε."""
    table = np.array(grid["error"], dtype=np.float64)
    row, column = np.unravel_index(np.nanargmin(table), table.shape)
    best = [grid["alphas"][i] for i in tuning.best_alpha_per_eps(table)]
    return {
        "best_error": float(table[row, column]),
        "best_alpha": grid["alphas"][row],
        "best_eps": grid["epsilons"][column],
        "diverged": int(np.isnan(table).sum()),
        "within_1_percent": int((table <= np.nanmin(table) + 1).sum()),
        "best_alpha_per_eps": best,
        "decades_of_best_alpha": float(np.log10(max(best) / min(best))),
        "loss_by_one_alpha_for_all_eps": tuning.separability(table),
    }


def cost(gaps: np.ndarray) -> dict[str, Any]:
    """Trials until the search is close: by repetition (those that never are count as one more than all), and of the mean."""
    found: dict[str, Any] = {"mean_gap": gaps.mean(0).round(4).tolist()}
    for within in WITHIN:
        each = tuning.trials_to_reach(gaps, within)
        counted = np.minimum(each, gaps.shape[1] + 1)
        quartiles = np.quantile(counted, (0.25, 0.5, 0.75)).tolist()
        of_mean = float(tuning.trials_to_reach(gaps.mean(0, keepdims=True), within)[0])
        found[f"to_{within:g}_percent"] = {
            "mean": float(counted.mean()),
            "quartiles": quartiles,
            "mean_curve": of_mean if np.isfinite(of_mean) else None,
            "reached": float(np.isfinite(each).mean()),
        }
    return found


def tell(summary: dict[str, Any]) -> None:
    """Both tables, for people."""
    for name, facts in summary["landscape"].items():
        print(f"{name}: best {facts['best_error']:.2f} % at α = {facts['best_alpha']:g}, ε = {facts['best_eps']:g}; "
              f"{facts['diverged']} settings diverged, {facts['within_1_percent']} within 1 % of the best")  # fmt: skip
        print(f"  best α for each ε: {' '.join(f'{a:g}' for a in facts['best_alpha_per_eps'])}")
        print(f"  moves over {facts['decades_of_best_alpha']:.1f} decades; one α for all ε loses "
              f"{facts['loss_by_one_alpha_for_all_eps']:.2f} % on average")  # fmt: skip
    print(f"\n{'trials to 0.5 % / 1 %':28}" + "".join(f"{name:>34}" for name in summary["cost"]))
    for method, label in METHODS.items():
        cells = []
        for found in summary["cost"].values():
            half, one = (found[method][f"to_{within:g}_percent"] for within in WITHIN)
            spread = f"[{half['quartiles'][0]:.0f}-{half['quartiles'][2]:.0f}]"
            cells.append(f"{half['quartiles'][1]:.0f} {spread} / {one['quartiles'][1]:.0f}")
        print(f"{label:28}" + "".join(f"{cell:>34}" for cell in cells))
    print(f"medians and quartiles of {summary['repetitions']} repetitions of {summary['trials']} trials")


def pictures(raw: dict[str, Any], gaps: dict[str, dict[str, np.ndarray]], summary: dict[str, Any], out: Path) -> None:
    """The figures of the thesis: two heat maps, curves, bars."""
    for name, grid in raw["grids"].items():
        table = np.array(grid["error"], dtype=np.float64)
        title = f"Validation error of {name} on {raw['recipe']['data']}"
        save(heat_map(title, grid["alphas"], grid["epsilons"], table), out / f"heat-{name.lower()}.svg")
    series = {
        f"{name}, {METHODS[method]}": Curve(np.arange(1, found.shape[1] + 1), found.mean(0), *np.quantile(found, (0.25, 0.75), 0))
        for name, by_method in gaps.items()
        for method, found in by_method.items()
        if method in ("gld", "cgld")
    }  # fmt: skip
    label = f"gap in % (mean and quartiles of {summary['repetitions']})"
    save(
        curves("Suboptimality", series, x_label="trials", y_label=label, log_x=True, floor=0.1),
        out / "suboptimality.svg",
    )
    bars = [
        (f"{name}, {METHODS[method]}", found["to_0.5_percent"]["quartiles"][1])
        for name, by_method in summary["cost"].items()
        for method, found in by_method.items()
    ]
    most = summary["trials"]

    def told(trials: float) -> str:
        return f"over {most}" if trials > most else f"{trials:g}"

    save(bar_rows("bars", "Trials to 0.5 % suboptimality (medians)", bars, full=most, form=told), out / "trials.svg")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = Path(__file__).parents[1] / "results" / "optimizers-grid" / "raw.json"
    parser.add_argument("raw", type=Path, nargs="?", default=usual, help="what optimizer_grid.py wrote")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--repetitions", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.raw == usual and not usual.exists():
        print(
            "There is no recorded grid yet: run benchmarks/optimizer_grid.py --json results/optimizers-grid/raw.json."
        )
        return
    if not args.raw.exists():
        parser.error(f"there is no {args.raw}: give the file that optimizer_grid.py --json wrote")
    raw = json.loads(args.raw.read_text())
    gaps: dict[str, dict[str, np.ndarray]] = {}
    for name, grid in raw["grids"].items():
        table = np.array(grid["error"], dtype=np.float64)
        gaps[name] = {
            method: tuning.suboptimality(table, method, min(args.trials, table.size), args.repetitions, args.seed)
            for method in METHODS
        }
    summary = {
        "command": environment(torch.device("cpu"))["command"],
        "trials": args.trials,
        "repetitions": args.repetitions,
        "seed": args.seed,
        "landscape": {name: landscape(grid) for name, grid in raw["grids"].items()},
        "cost": {name: {method: cost(found) for method, found in each.items()} for name, each in gaps.items()},
    }
    tell(summary)
    (args.raw.parent / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    pictures(raw, gaps, summary, args.raw.parent)


if __name__ == "__main__":
    main()
