"""Claim: finding which channels belong together, and trying out that they can go, takes seconds on two CPU cores.

`compress` with group="channel" and an example of 224 px: ResNet-50 <= 5 s on two free cores; ShuffleNet, one of whose layers cannot
lose channels and has to be searched for, <= 10 s. The time grows with the layers and the weights, not with their square: a
chain of 200 layers takes no more than 2.5 times as long as one of 100. Most of it is one `torch.export` and the forward passes of trials.

How it is measured: each network is built and compressed once, one after the other, after a small one that imports what
torch.export needs (printed too: about a second, once per process). Nothing is trained. The size of the batch does not
matter, since one example is followed.

    python benchmarks/channels.py
    python benchmarks/channels.py --networks resnet50 --batch 2 --json channels.json
"""

import argparse
import json
import time

import torch
from torch import nn

import paretorch as pt
from paretorch import zoo
from paretorch.training.folder import environment

PIXELS = {"resnet50": 224, "mobilenetv2": 224, "shufflenet": 224, "wrn-28-10": 32}


def chain(depth: int, width: int = 16) -> nn.Module:
    """A chain of convolutions and norms."""
    layers: list[nn.Module] = []
    for index in range(depth):
        layers += [nn.Conv2d(3 if index == 0 else width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def seconds(model: nn.Module, example: torch.Tensor) -> float:
    """How long `compress` takes."""
    method = pt.ContinuousSparsification(target=0.5, group="channel")
    start = time.perf_counter()
    pt.compress(model, method, steps=100, example=example)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", default=list(PIXELS), choices=list(PIXELS))
    parser.add_argument("--depths", nargs="*", type=int, default=[100, 200])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", help="write the seconds to this file, too")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    found = {"first call": seconds(chain(2), torch.randn(args.batch, 3, 8, 8))}
    for name in args.networks:
        found[name] = seconds(zoo.build(name), torch.randn(args.batch, 3, PIXELS[name], PIXELS[name]))
    for depth in args.depths:
        found[f"chain of {depth}"] = seconds(chain(depth), torch.randn(args.batch, 3, 8, 8))
    for name, value in found.items():
        print(f"{name:>14}  {value:6.2f} s")
    if args.json:
        with open(args.json, "w") as file:
            record = {"environment": environment(torch.device("cpu")), "seconds": found}  # the command is part of it
            json.dump(record, file, indent=2)


if __name__ == "__main__":
    main()
