"""Aim: `compress(latency="1/2")` gives networks that take 0.95 to 1.05 of half of the dense network's time, in files exported afterwards
and measured anew, under onnxruntime with two threads at batch 1.

    python benchmarks/latency_budget.py                                            # MobileNetV2 and ResNet-50, 128 × 128 pixels
    python benchmarks/latency_budget.py --json results/latency-budget/cpu.json

What is left of the accuracy is not measured here: networks see a few batches of noise, so that their channels differ, and nothing else. The
time of a network does not depend on what it was trained to. Dense and cut network are timed in turns, round by round; what is compared with the
budget is the median of their ratios, with the lowest and highest of the rounds beside it.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import paretorch as pt
from paretorch import zoo
from paretorch.deploy.measure.latency import timed_rounds
from paretorch.deploy.measure.latency_process import file_call
from paretorch.deploy.measure.structure import count_macs

_SHARES = {"1/2": 0.5, "2/3": 2 / 3, "3/4": 0.75, "1/3": 1 / 3, "1/4": 0.25}


def cut(model: nn.Module, example: Tensor, options: argparse.Namespace) -> tuple[nn.Module, dict[str, Any]]:
    """The network within the budget, and how long it took to get there."""
    start = time.perf_counter()
    method = pt.ContinuousSparsification(group="channel", start="saliency", multiple=options.multiple)
    plan = pt.compress(model, method, steps=options.steps, example=example, latency=options.latency)
    compressed = time.perf_counter()
    optimizer = torch.optim.SGD(plan.param_groups(), lr=1e-3)
    for _ in range(options.steps):
        inputs = torch.randn(options.train_batch, *example.shape[1:])
        nn.functional.cross_entropy(model(inputs), torch.randint(0, 10, (len(inputs),))).backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
    trained = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pt.errors.UndecidedWarning)
        plan.harden(optimizer)
    seconds = {"compress": compressed - start, "harden": time.perf_counter() - trained}
    return plan.finalize(), {name: round(value, 1) for name, value in seconds.items()}


def compare(dense: nn.Module, small: nn.Module, example: Tensor, options: argparse.Namespace) -> dict[str, Any]:
    """Both as files that a user would ship, timed in turns."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", pt.errors.PareWarning)
        calls = {}
        for name, model in (("dense", dense), ("small", small)):
            path = Path(folder) / f"{name}.onnxruntime"
            pt.export_onnx(model, example, path)
            calls[name] = file_call(path, [example], options.threads)
        times = timed_rounds(calls, options.rounds, options.seconds)
    ratios = [b / a for a, b in zip(times["dense"], times["small"], strict=True)]
    return {
        "dense_ms": statistics.median(times["dense"]),
        "small_ms": statistics.median(times["small"]),
        "ratio": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
    }


def measure(network: str, options: argparse.Namespace) -> dict[str, Any]:
    torch.manual_seed(0)
    example = torch.randn(1, 3, options.pixels, options.pixels)
    model = zoo.build(network, classes=10).train()
    with torch.no_grad():
        model(torch.randn(options.train_batch, *example.shape[1:]))  # norms have seen a batch
    dense = zoo.build(network, classes=10).eval()
    small, seconds = cut(model, example, options)
    found = compare(dense, small.eval(), example, options)
    macs = [sum(count_macs(one, example).values()) for one in (dense, small)]
    met = found["ratio"] / _SHARES[options.latency]
    return {"network": network, "times_budget": met, **found, "macs": macs, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=["mobilenetv2", "resnet50"])
    parser.add_argument("--pixels", type=int, default=128)
    parser.add_argument("--latency", choices=list(_SHARES), default="1/2")
    parser.add_argument("--multiple", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--train-batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--json", type=Path, help="write the rows here too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = []
    for network in options.networks:
        row = measure(network, options)
        rows.append(row)
        print(
            f"{network}: {row['dense_ms']:.2f} ms dense, {row['small_ms']:.2f} ms; {row['ratio']:.3f} of dense "
            f"({row['lowest']:.3f} to {row['highest']:.3f}), {row['times_budget']:.3f} × the budget of {options.latency}; "
            f"{row['macs'][1] / row['macs'][0]:.2f} of the multiply-adds; {row['seconds']}",
            flush=True,
        )
        if options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            hardware = {"machine": platform.machine(), "threads": options.threads, "torch": torch.__version__}
            settings = {name: value for name, value in vars(options).items() if name != "json"}
            options.json.write_text(
                json.dumps({"hardware": hardware, "options": settings, "rows": rows}, indent=1) + "\n"
            )


if __name__ == "__main__":
    main()
