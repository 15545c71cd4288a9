"""Claim: what a network's shape saves is measured, not guessed: dense and narrowed networks in torch and onnxruntime.

    python benchmarks/latency.py [--batch 1 128] [--threads 2] [--network resnet20]

All candidates are timed in one process of their own, in turn, several rounds; the spread is that of the rounds' medians.
"""

from __future__ import annotations

import argparse
import inspect

import torch
from torch import nn

from paretorch import zoo
from paretorch.deploy import measure_latency
from paretorch.deploy.macs import count_macs


def candidates(name: str) -> dict[str, nn.Module]:
    """The network, and half as wide where it has an option for it."""
    torch.manual_seed(0)
    dense = zoo.build(name)
    found: dict[str, nn.Module] = {"dense": dense}
    width = inspect.signature(type(dense)).parameters.get("width")
    if width is not None and isinstance(width.default, int):
        found["half the width"] = zoo.build(name, width=width.default // 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="resnet20")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 128])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(f"{'network':24}{'runtime':14}{'batch':>6}{'MACs':>14}{'median ms':>12}{'lowest':>10}{'highest':>10}")
    for batch in options.batch:
        example = torch.randn(batch, 3, 32, 32)
        models = candidates(options.network)
        macs = {name: sum(count_macs(model, example).values()) for name, model in models.items()}
        for found in measure_latency(models, example, rounds=options.rounds, threads=options.threads):
            print(
                f"{found.name:24}{found.runtime:14}{batch:>6}{macs[found.name]:>14,}"
                f"{found.median_ms:>12.3f}{found.low_ms:>10.3f}{found.high_ms:>10.3f}"
            )


if __name__ == "__main__":
    main()
