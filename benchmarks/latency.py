"""Aim: a network that lost channels, half of its multiply-adds, is 1.7 × as fast in onnxruntime at batch 128 and no slower at
batch 1, measured in one run beside the dense one.

    python benchmarks/latency.py [--network vgg16] [--batch 1 128] [--threads 2]   # channels pruned by magnitude, untrained
    python benchmarks/latency.py runs/mine/model.pare                              # a file of yours beside its dense network
    python benchmarks/latency.py --json results/latency.json

All candidates are timed in one process of their own, in turn, several rounds; the spread is that of the rounds' medians, and
a ratio that of the medians under the same runtime. The time of a network does not depend on what it was trained to, but on how
many channels it has: runtimes take 16 at a time, so that channels that go one by one may save nothing ("half, any channels").
"""

from __future__ import annotations

import argparse
import json
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paretorch import zoo
from paretorch.deploy import load, measure_latency
from paretorch.deploy.measure.structure import count_macs
from paretorch.deploy.rivals import prune_channels

DENSE = "dense"


def macs_of(model: nn.Module, example: Tensor) -> int:
    return sum(count_macs(model, example).values())


def candidates(network: str, files: list[Path], example: Tensor) -> dict[str, nn.Module]:
    """The dense network, and what is compared with it: given files of it, or the same with half of its MACs."""
    torch.manual_seed(0)
    if not files:
        dense = zoo.build(network).eval()
        found = {}
        for name, multiple in {"half the MACs": 16, "half, any channels": 1}.items():
            found[name] = prune_channels(dense, example, 0.5, exclude=["head"], count="macs", multiple=multiple)
        return {DENSE: dense, **found}
    found = {str(path): load(path) for path in files}
    names = {(model.zoo_name, json.dumps(model.zoo_options)): model for model in found.values()}
    if len(names) > 1:
        raise SystemExit(
            f"the files hold several networks, and one is compared at a time: {', '.join(n for n, _ in names)}"
        )
    model = next(iter(names.values()))
    return {DENSE: zoo.build(model.zoo_name, **model.zoo_options).eval(), **found}


def measure(models: dict[str, nn.Module], example: Tensor, rounds: int, threads: int) -> list[dict[str, Any]]:
    macs = {name: macs_of(model, example) for name, model in models.items()}
    times = measure_latency(models, example, rounds=rounds, threads=threads)
    dense = {one.runtime: one.median_ms for one in times if one.name == DENSE}
    return [
        {**asdict(one), "macs": macs[one.name], "times_dense": dense[one.runtime] / one.median_ms}
        for one in times
        if one.runtime in dense
    ]


def show(rows: list[dict[str, Any]]) -> None:
    wide = max(len(row["name"]) for row in rows) + 2
    print(
        f"{'network':{wide}}{'runtime':13}{'batch':>5}{'MACs':>14}{'median ms':>11}{'lowest':>9}{'highest':>9}  speed"
    )
    for row in rows:
        spread = f"{row['median_ms']:>11.3f}{row['low_ms']:>9.3f}{row['high_ms']:>9.3f}"
        speed = f"{row['times_dense']:.2f} ×" + ("" if row["isolated"] else ", not timed alone")
        print(f"{row['name']:{wide}}{row['runtime']:13}{row['batch']:>5}{row['macs']:>14,}{spread}  {speed}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="*", help="artefacts of one network of the zoo")
    parser.add_argument("--network", default="resnet20", help="without files: a network of the zoo")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 128])
    parser.add_argument("--shape", type=int, nargs="+", default=[3, 32, 32], help="of one input")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the rows here too")
    options = parser.parse_args()
    models = candidates(options.network, options.files, torch.randn(1, *options.shape))
    rows: list[dict[str, Any]] = []
    for batch in options.batch:
        rows += measure(models, torch.randn(batch, *options.shape), options.rounds, options.threads)
    show(rows)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        hardware = {"machine": platform.machine(), "threads": options.threads, "torch": torch.__version__}
        options.json.write_text(json.dumps({"hardware": hardware, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
