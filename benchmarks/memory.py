"""Process memory of a step and of `harden`, as a multiple of the weights, decisions included.

    python benchmarks/memory.py --json results/memory/cpu.json
    python benchmarks/memory.py --weights 25_000_000 --method cs

One layer holds all the weights, which is the worst case: nothing can be done part by part. Each case runs in a process of its own,
whose peak is read after each phase; what the process takes before the network is made is subtracted. Beside the weights W
there are gradients (1 W), the optimizer's momentum (1 W, SGD) and, for CS and SMOL by weight, θ or s and their gradients and momentum.
The dense row is the same loop without a plan. The aim is 2.5 × the weights above the dense step.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

METHODS = ("dense", "cs", "cs channel", "smol", "smol channel")
_STEPS = 3


def peak() -> int:
    """Bytes of the process at their most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(method: str, weights: int) -> dict[str, Any]:
    """Run one case in this process."""
    import torch

    import paretorch as pt

    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = 1000
    base = peak()
    layer = torch.nn.Linear(weights // rows, rows, bias=False)
    inputs = torch.randn(2, weights // rows)
    held = peak() - base
    name, _, group = method.partition(" ")
    group = group or "weight"
    kinds = {
        "cs": lambda: pt.ContinuousSparsification(target=0.9, group=group),
        "smol": lambda: pt.SMOL(target_bits=3.0, group=group),
    }
    plan = pt.compress(layer, kinds[name](), steps=_STEPS) if name in kinds else None
    optimizer = torch.optim.SGD(layer.parameters() if plan is None else plan.param_groups(), lr=0.01, momentum=0.9)
    found: dict[str, Any] = {"method": method, "weights": weights, "weights_bytes": 4 * weights, "network_bytes": held}
    found["compress_bytes"] = peak() - base
    start = time.perf_counter()
    for _ in range(_STEPS):
        layer(inputs).square().mean().backward()
        optimizer.step()
        if plan is not None:
            plan.step()
        optimizer.zero_grad()
    found["step_s"] = round((time.perf_counter() - start) / _STEPS, 3)
    found["step_bytes"] = peak() - base
    found["step_ratio"] = round(found["step_bytes"] / (4 * weights), 2)
    if plan is not None:
        start = time.perf_counter()
        plan.harden(optimizer)
        found["harden_s"] = round(time.perf_counter() - start, 3)
        found["harden_bytes"] = peak() - base
        found["harden_ratio"] = round(found["harden_bytes"] / (4 * weights), 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=int, default=100_000_000)
    parser.add_argument("--method", choices=METHODS, action="append")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one, given.weights)))
        return
    rows = []
    for method in given.method or METHODS:
        words = [sys.executable, str(Path(__file__).resolve()), "--weights", str(given.weights), "--one", method]
        done = subprocess.run(words, capture_output=True, text=True, check=True, env=dict(os.environ))
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        row = rows[-1]
        harden = f", harden {row['harden_ratio']:.2f}" if "harden_ratio" in row else ""
        print(f"{method:14} step {row['step_ratio']:.2f}{harden} × the {4 * given.weights / 1e6:.0f} MB of the weights")
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        command = f"python benchmarks/memory.py --weights {given.weights} --json {given.json}"
        given.json.write_text(json.dumps({"command": command, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
