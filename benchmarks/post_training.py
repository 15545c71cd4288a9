"""Claim: without labels and without training, at the bytes of GPTQ, `post_train` changes a network far less.

GPTQ is counted at the smaller of its file and of packed codes, half-precision scales and packed zero points; `post_train` gets
those bytes as its budget and is counted at its file. Rounding to the largest weight of each channel (max-abs) is counted at its file. Each
calibration draw is a seed.

    python benchmarks/post_training.py                                    # a depthwise network with batch norm on the digits of the package
    python benchmarks/post_training.py --bed beds.py --name llama --options '{"length": 224}' --gptq 4x96 3x32
    python benchmarks/post_training.py --bed beds.py --name resnet --data im --budgets "8 MB" "5 MB"

A bed is a Python file with the functions NAME() (the trained network), NAME_batches(seed) (an endless iterator of inputs, or of pairs of inputs and
labels, which are left out) and NAME_eval(model) (a number); `--data` is the prefix of the last two if it is another one.
"""

import argparse
import copy
import importlib.util
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import paretorch as pt
from paretorch.training.recipe_values import parse_bytes
from paretorch.workflows.posttraining import post_train
from paretorch.workflows.posttraining.gptq import gptq, packed_bytes
from paretorch.zoo.data import digits


@dataclass(frozen=True)
class Bed:
    """A trained network, its inputs and its measure."""

    model: nn.Module
    batches: Callable[[int], Iterator[Any]]
    evaluate: Callable[[nn.Module], float]


class Separable(nn.Module):
    """Three blocks of a depthwise and a pointwise convolution, each with batch norm."""

    def __init__(self) -> None:
        super().__init__()
        widths = (32, 64, 96, 128)
        self.stem = nn.Sequential(
            nn.Conv2d(1, widths[0], 3, padding=1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU()
        )
        blocks: list[nn.Module] = []
        for before, after in pairwise(widths):
            blocks += [
                nn.Conv2d(before, before, 3, padding=1, groups=before, bias=False),
                nn.BatchNorm2d(before),
                nn.ReLU(),
            ]
            blocks += [nn.Conv2d(before, after, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(widths[-1], 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def depthwise_bed() -> Bed:
    """Train the separable network on the digits for a few seconds."""
    torch.manual_seed(0)
    data, model = digits.load(), Separable()
    (train, labels), (test, truth) = data.train, data.test
    scaled, held = (train.float() / 255 - 0.3) / 0.37, (test.float() / 255 - 0.3) / 0.37
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(300):
        rows = torch.randint(len(scaled), (64,))
        loss = nn.functional.cross_entropy(model(scaled[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def batches(seed: int) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        while True:
            yield scaled[torch.randint(len(scaled), (32,), generator=generator)]

    @torch.no_grad()
    def evaluate(network: nn.Module) -> float:
        return float(nn.functional.cross_entropy(network.eval()(held), truth))

    return Bed(model.eval(), batches, evaluate)


def bed_of(file: Path, name: str, data: str, options: dict[str, Any]) -> Bed:
    """Load a bed from a file; labels are left out, and token ids are given by name."""
    spec = importlib.util.spec_from_file_location("bed", file)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)

    def batches(seed: int) -> Iterator[Any]:
        for batch in getattr(found, f"{data}_batches")(seed, **options):
            x = batch[0] if isinstance(batch, tuple) else batch
            yield x if x.is_floating_point() else {"input_ids": x}

    return Bed(getattr(found, name)(), batches, getattr(found, f"{data}_eval"))


def file_size(model: nn.Module) -> int:
    with tempfile.TemporaryDirectory() as folder:
        return pt.save(model, Path(folder) / "model.pare").total


@torch.no_grad()
def max_abs(model: nn.Module, bits: int) -> nn.Module:
    """Return the model with every channel rounded to multiples of its largest weight / (2^(bits − 1) − 1)."""
    found = copy.deepcopy(model)
    for parameter in found.parameters():
        if parameter.dim() > 1:
            step = parameter.abs().amax(tuple(range(1, parameter.dim())), keepdim=True) / (2 ** (bits - 1) - 1)
            parameter.copy_((parameter / step.clamp_min(1e-12)).round() * step)
    return found


def ours(bed: Bed, seed: int, batches: int, budget: int) -> dict[str, Any]:
    start = time.perf_counter()
    found = post_train(bed.model, islice(bed.batches(seed), batches), budget=budget)
    seconds = time.perf_counter() - start
    return {
        "method": "post_train",
        "seed": seed,
        "budget": budget,
        "bytes": file_size(found.model),
        "value": bed.evaluate(found.model),
        "seconds": seconds,
    }


def rival(bed: Bed, seed: int, batches: int, bits: int, group: int) -> dict[str, Any]:
    start = time.perf_counter()
    found = gptq(bed.model, islice(bed.batches(seed), batches), bits=bits, group=group)
    seconds = time.perf_counter() - start
    sizes = {"file": file_size(found), "packed": packed_bytes(bed.model, bits, group)}
    return {
        "method": f"GPTQ {bits} bits in groups of {group}",
        "seed": seed,
        "bytes": min(sizes.values()),
        **sizes,
        "value": bed.evaluate(found),
        "seconds": seconds,
    }


def _environment() -> dict[str, Any]:
    words = [Path(word).name if word.endswith((".py", ".json")) else word for word in sys.argv[1:]]
    cores = f"{os.cpu_count()} CPU cores"
    return {
        "command": shlex.join(["python", "benchmarks/post_training.py", *words]),
        "machine": cores,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bed", type=Path)
    parser.add_argument("--name", default="llama")
    parser.add_argument("--data")
    parser.add_argument("--options", type=json.loads, default={}, help="further arguments of NAME_batches, as JSON")
    parser.add_argument("--gptq", nargs="*", default=[], help="BITSxGROUP")
    parser.add_argument("--max-abs", nargs="*", type=int, default=[], help="bits")
    parser.add_argument("--budgets", nargs="*", default=[])
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.bed is None and not (args.gptq or args.max_abs or args.budgets):
        args.gptq, args.max_abs = ["4x96", "3x32"], [8, 4, 3]
    bed = depthwise_bed() if args.bed is None else bed_of(args.bed, args.name, args.data or args.name, args.options)
    record = {**_environment(), "dense": bed.evaluate(bed.model), "results": []}
    print(f"dense {record['dense']:.4f}", flush=True)

    def add(row: dict[str, Any]) -> int:
        record["results"].append(row)
        print(
            "  ".join(
                f"{key} {value:.4f}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
            ),
            flush=True,
        )
        if args.json is not None:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.write_text(json.dumps(record, indent=2) + "\n")
        return int(row["bytes"])

    for seed in args.seeds:
        for text in args.gptq:
            bits, group = map(int, text.split("x"))
            add(ours(bed, seed, args.batches, add(rival(bed, seed, args.batches, bits, group))))
        for bits in args.max_abs:
            network = max_abs(bed.model, bits)
            size = add(
                {
                    "method": f"max-abs {bits} bits per channel",
                    "bytes": file_size(network),
                    "value": bed.evaluate(network),
                }
            )
            add(ours(bed, seed, args.batches, size))
        for budget in args.budgets:
            add(ours(bed, seed, args.batches, parse_bytes(budget)))


if __name__ == "__main__":
    main()
