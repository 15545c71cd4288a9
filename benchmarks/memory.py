"""Process memory of a step and of `harden`, as a multiple of the weights.

    python benchmarks/memory.py --weights 100_000_000 --json results/memory/cpu-100m.json
    python benchmarks/memory.py --weights 25_000_000 --layers 100 --method cs

Each case runs in a process of its own, whose peak is read after each phase; what the process takes before the network is made, with all
modules loaded, is subtracted. `dense` is the same loop without a plan: weights, gradients and momentum, three times the weights.
`held` is what a plan keeps by its nature: θ, the decisions, their gradients and the state of their optimizer. The claim: a step and
`harden` take the dense step, what is held, and at most half the weights more for one layer of 100 million weights. With many layers, what the
allocator of the C library keeps between them comes on top, unless MALLOC_MMAP_THRESHOLD_ is set.
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

METHODS = ("dense", "cs", "cs trained", "cs channel", "smol", "smol channel")
_STEPS = 3


def peak() -> int:
    """Bytes of the process at their most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def held(model: Any, plan: Any) -> int:
    """Bytes of what the plan keeps, and of the gradients of its decisions."""
    import torch

    found: dict[int, int] = {}
    decided = 0
    for name, tensor in model.state_dict(keep_vars=True).items():
        if "paretorch_" in name:
            found[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
            decided += found[tensor.data_ptr()] if name.endswith(".s") else 0
    latent = sum(m.latent.numel() * m.latent.element_size() for m in model.modules() if hasattr(m, "latent"))
    known = torch.utils._pytree.tree_leaves(plan.state_dict())
    state = sum(one.numel() * one.element_size() for one in known if isinstance(one, torch.Tensor))
    return sum(found.values()) + latent + decided + state


def train(method: str, weights: int, layers: int, found: dict[str, Any] | None = None, base: int = 0) -> None:
    """Make the network, step it and harden it; note the peaks."""
    import torch

    import paretorch as pt

    found = {} if found is None else found
    torch.manual_seed(0)
    if layers == 1:
        inputs = torch.randn(2, weights // 1000)
        model = torch.nn.Sequential(torch.nn.Linear(weights // 1000, 1000, bias=False))
    else:
        width = round((weights / layers) ** 0.5)
        inputs = torch.randn(2, width)
        model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(layers)))
    size = 4 * sum(p.numel() for p in model.parameters())
    kind, _, option = method.partition(" ")
    group = option if option == "channel" else "weight"
    start = "saliency" if option == "trained" else "auto"
    kinds = {
        "cs": lambda: pt.ContinuousSparsification(target=0.9, group=group, start=start),
        "smol": lambda: pt.SMOL(target_bits=3.0, group=group),
    }
    plan = pt.compress(model, kinds[kind](), steps=_STEPS) if kind in kinds else None
    found["compress_ratio"] = round((peak() - base) / size, 2)
    optimizer = torch.optim.SGD(model.parameters() if plan is None else plan.param_groups(), lr=0.01, momentum=0.9)
    begin = time.perf_counter()
    for _ in range(_STEPS):
        model(inputs).square().mean().backward()
        optimizer.step()
        if plan is not None:
            plan.step()
        optimizer.zero_grad()
    found["step_s"] = round((time.perf_counter() - begin) / _STEPS, 3)
    found["step_ratio"] = round((peak() - base) / size, 2)
    found["weights_bytes"] = size
    if plan is not None:
        found["held_ratio"] = round(held(model, plan) / size, 2)
        begin = time.perf_counter()
        plan.harden(optimizer)
        found["harden_s"] = round(time.perf_counter() - begin, 3)
        found["harden_ratio"] = round((peak() - base) / size, 2)


def measure(method: str, weights: int, layers: int) -> dict[str, Any]:
    """Run one case in this process."""
    import warnings

    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    train(method, 20_000, 2)  # loads everything
    found: dict[str, Any] = {"method": method, "weights": weights, "layers": layers}
    train(method, weights, layers, found, peak())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=int, default=100_000_000)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--method", choices=METHODS, action="append")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one, given.weights, given.layers)))
        return
    rows: list[dict[str, Any]] = []
    size = f"{given.weights:,} weights in {given.layers} layer{'s' if given.layers > 1 else ''}"
    print(f"{size}, in multiples of the weights:\n")
    print(
        "| method | held | step | beyond dense and held | harden | step, s | harden, s |\n|---|---|---|---|---|---|---|"
    )
    for method in given.method or METHODS:
        words = [sys.executable, str(Path(__file__).resolve()), "--weights", str(given.weights)]
        words += ["--layers", str(given.layers), "--one", method]
        done = subprocess.run(words, capture_output=True, text=True, check=True, env=dict(os.environ))
        row = json.loads(done.stdout.splitlines()[-1])
        rows.append(row)
        dense = next((one["step_ratio"] for one in rows if one["method"] == "dense"), None)
        if dense is not None and "held_ratio" in row:
            row["beyond_ratio"] = round(max(row["step_ratio"], row["harden_ratio"]) - dense - row["held_ratio"], 2)
        names = ("held_ratio", "step_ratio", "beyond_ratio", "harden_ratio", "step_s", "harden_s")
        print(f"| {method} | " + " | ".join(str(row.get(name, "")) for name in names) + " |", flush=True)
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        command = f"python benchmarks/memory.py --weights {given.weights} --layers {given.layers} --json {given.json}"
        given.json.write_text(json.dumps({"command": command, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
