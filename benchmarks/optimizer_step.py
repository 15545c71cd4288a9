"""Aim: a step of AvaGrad costs less than a step of Adam, although it normalises over the whole network.

On one H200: 491 M fp32 parameters in 104 tensors take at most 0.90 x the time of torch's fused Adam and at least 90 % of
the bandwidth of a copy (28 bytes a parameter: p, m, v read and written, g read); ResNet-20's 65 small tensors at most
1.0 x. (The aim on a CPU is that of optimizer_training.py, where every optimizer has a process to itself.) What has been
shown of this is in results/optimizers-step.

    python benchmarks/optimizer_step.py                                # ResNet-20 and a case that fits the machine
    python benchmarks/optimizer_step.py --params 491M --tensors 104    # the large case
    python benchmarks/optimizer_step.py --case resnet20 --graph        # steps replayed from a CUDA graph

All optimizers are timed in the same run, in turns: each round times every one of them once, and the table shows the
medians over the rounds of the time and of the ratio within a round, with their quartiles, so that a machine that slows
down slows them all down. (Beyond 100 M parameters one is timed after the other.) Peers that are not installed
(pytorch_optimizer) are left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paretorch.optim import AvaGrad, AvaGradW
from paretorch.training.folder import environment

BYTES_PER_PARAMETER = 28
REFERENCE = {"cuda": "Adam fused", "cpu": "Adam foreach"}


def resnet20_shapes() -> list[tuple[int, ...]]:
    """The 65 parameters of ResNet-20 for CIFAR-10: 19 convolutions and 2 shortcuts with batch norm, one classifier."""
    shapes: list[tuple[int, ...]] = [(16, 3, 3, 3), (16,), (16,)]
    width = 16
    for stage in (16, 32, 64):
        for block in range(3):
            source = width if block == 0 else stage
            shapes += [(stage, source, 3, 3), (stage,), (stage,), (stage, stage, 3, 3), (stage,), (stage,)]
            if block == 0 and source != stage:
                shapes += [(stage, source, 1, 1), (stage,), (stage,)]
        width = stage
    return [*shapes, (10, 64), (10,)]


def even_shapes(params: int, tensors: int) -> list[tuple[int, ...]]:
    """`tensors` vectors of equal length, about `params` elements in all."""
    return [(params // tensors,)] * tensors


def optimizers(device: str) -> dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]]:
    """The field: ours, torch's, and peers that are installed."""
    graph = {"capturable": True} if device == "cuda" else {}
    field: dict[str, Callable[[list[Tensor]], Any]] = {
        "AvaGrad": lambda p: AvaGrad(p, lr=1e-3, eps=1e-8, **graph),
        "AvaGradW": lambda p: AvaGradW(p, lr=1e-3, eps=1e-8, weight_decay=1e-2, **graph),
        "AvaGrad foreach": lambda p: AvaGrad(p, lr=1e-3, eps=1e-8, foreach=True, **graph),
        "Adam fused": lambda p: torch.optim.Adam(p, lr=1e-3, fused=True, **graph),
        "Adam foreach": lambda p: torch.optim.Adam(p, lr=1e-3, foreach=True, **graph),
        "SGD fused": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, fused=True),
        "SGD foreach": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, foreach=True),
    }
    try:
        from pytorch_optimizer import AvaGrad as PeerAvaGrad
    except ImportError:
        return field
    field["pytorch_optimizer AvaGrad"] = lambda p: PeerAvaGrad(p, lr=1e-3, eps=1e-8)
    return field


class Stopwatch:
    """Milliseconds per call, by CUDA events on a GPU and by the clock on a CPU."""

    def __init__(self, device: str) -> None:
        self.device = device

    def __call__(self, call: Callable[[], object], calls: int) -> float:
        if self.device == "cuda":
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            start.record()
            for _ in range(calls):
                call()
            end.record()
            torch.cuda.synchronize()
            return float(start.elapsed_time(end)) / calls
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - begin) * 1e3 / calls


class Graphed:
    """A step as a CUDA graph. It must have run before, and is kept, since the graph uses its memory."""

    def __init__(self, step: Callable[[], object]) -> None:
        self.step = step
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph):
            step()

    def __call__(self) -> None:
        self.graph.replay()


def make_call(build: Callable[[list[Tensor]], Any], params: list[Tensor], use_graph: bool) -> Callable[[], object]:
    """A warmed up step."""
    optimizer = build(params)
    for _ in range(3):
        optimizer.step()
    step: Callable[[], object] = optimizer.step
    return Graphed(step) if use_graph else step


def measure(shapes: list[tuple[int, ...]], args: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per optimizer. One optimizer's state is in memory at a time if the case is large."""
    watch = Stopwatch(args.device)
    params = [torch.randn(shape, device=args.device).mul_(0.02) for shape in shapes]
    for p in params:
        p.requires_grad_()
        p.grad = torch.randn_like(p).mul_(1e-3)
    count = sum(p.numel() for p in params)
    times: dict[str, list[float]] = {}
    field = {k: v for k, v in optimizers(args.device).items() if not args.only or k in args.only}
    small = count < 100_000_000
    calls: dict[str, Callable[[], object]] = {}
    for name, build in field.items():
        use_graph = args.graph and not name.startswith("pytorch_optimizer")
        if small:
            calls[name] = make_call(build, params, use_graph)
        else:
            call = make_call(build, params, use_graph)
            times[name] = [watch(call, args.calls) for _ in range(args.rounds)]
            del call
    for _ in range(args.rounds if small else 0):
        for name, call in calls.items():
            times.setdefault(name, []).append(watch(call, args.calls))
    return [make_row(name, found, count, len(shapes)) for name, found in times.items()]


def copy_bandwidth(device: str, rounds: int) -> float:
    """Bytes per second, read and written, of a copy of 1 GiB."""
    source = torch.empty(1 << 28, device=device)
    target = torch.empty_like(source)
    watch = Stopwatch(device)
    watch(lambda: target.copy_(source), 3)
    return 2 * source.numel() * 4 / (min(watch(lambda: target.copy_(source), 10) for _ in range(rounds)) * 1e-3)


def show(title: str, rows: list[dict[str, Any]], device: str, bandwidth: float | None) -> None:
    """Print one table; ratios are to the reference of the device."""
    reference = next((row["times"] for row in rows if row["optimizer"] == REFERENCE[device]), None)
    print(f"\n{title}, {device}, {rows[0]['parameters'] / 1e6:.2f} M parameters in {rows[0]['tensors']} tensors")
    print(f"{'':28}{'ms/step':>10}{'quartiles':>20}{'x ' + REFERENCE[device]:>16}{'quartiles':>14}{'of copy':>10}")
    for row in rows:
        row["ratio"] = row["ratio_quartiles"] = None
        if reference is not None:
            low, row["ratio"], high = _quartiles([a / b for a, b in zip(row["times"], reference, strict=True)])
            row["ratio_quartiles"] = [low, high]
        row["of_copy"] = None
        if bandwidth is not None and "SGD" not in row["optimizer"]:
            row["of_copy"] = BYTES_PER_PARAMETER * row["parameters"] / (row["ms"] * 1e-3) / bandwidth
        spread = f"{row['quartiles'][0]:.3f} - {row['quartiles'][1]:.3f}"
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        around = "" if row["ratio"] is None else "{:.2f} - {:.2f}".format(*row["ratio_quartiles"])
        share = "" if row["of_copy"] is None else f"{row['of_copy']:.0%}"
        print(f"{row['optimizer']:28}{row['ms']:>10.3f}{spread:>20}{ratio:>16}{around:>14}{share:>10}")


def make_row(name: str, times: list[float], params: int, tensors: int) -> dict[str, Any]:
    """What `show` tells of one optimizer, from its time in every round."""
    low, middle, high = _quartiles(times)
    return {
        "optimizer": name,
        "ms": middle,
        "quartiles": [low, high],
        "times": times,
        "parameters": params,
        "tensors": tensors,
    }


def _quartiles(values: list[float]) -> list[float]:
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3


def _count(text: str) -> int:
    units = {"K": 10**3, "M": 10**6, "B": 10**9}
    return int(float(text[:-1]) * units[text[-1].upper()]) if text[-1].upper() in units else int(text)


def main() -> None:
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default=default)
    parser.add_argument("--case", choices=("all", "resnet20", "even"), default="all")
    parser.add_argument("--params", type=_count, help="elements of the even case (491M on a GPU, 25M on a CPU)")
    parser.add_argument("--tensors", type=int, default=104)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, help="steps per round (10 on a GPU, 3 on a CPU)")
    parser.add_argument("--graph", action="store_true", help="replay the steps from a CUDA graph")
    parser.add_argument("--only", nargs="*", help="names of the optimizers to time")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    args = parser.parse_args()
    known = optimizers(args.device)
    if unknown := [name for name in args.only or [] if name not in known]:
        parser.error(f"--only: there is no {unknown[0]!r} here, only {', '.join(known)}")
    args.params = args.params or (491_000_000 if args.device == "cuda" else 25_000_000)
    args.calls = args.calls or (10 if args.device == "cuda" else 3)
    bandwidth = copy_bandwidth(args.device, 5) if args.device == "cuda" else None
    hardware = torch.cuda.get_device_name() if args.device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"torch {torch.__version__}, {hardware}" + (f", copy {bandwidth / 1e12:.2f} TB/s" if bandwidth else ""))
    cases = {"resnet20": resnet20_shapes(), "even": even_shapes(args.params, args.tensors)}
    results = {}
    for name, shapes in cases.items():
        if args.case in ("all", name):
            rows = measure(shapes, args)
            show(name, rows, args.device, bandwidth)
            results[name] = rows
    if args.json:
        facts = {**environment(torch.device(args.device)), "copy_bytes_per_second": bandwidth, "graph": args.graph}
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({**facts, "cases": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
