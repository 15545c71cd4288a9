"""Claim: `pt.shrink` turns a trained network into a small file without labels, within minutes on a CPU; training adds to rounding alone.

Each budget is met twice, without training steps (post-training) and with `--steps`. The measure is that of the network's own task, on data that
neither calibration nor training has seen; no option is chosen by it.

    python benchmarks/shrink.py --network convnet.pt --root data --budgets 1/10 --steps 350
    python benchmarks/shrink.py --bed beds.py --name llama --budgets "3.7 MB" "2.6 MB" --steps 200 --gptq 4x96

The first needs the network that `benchmarks/pretrained_convnet.py --only dense` trains. A bed is a Python file with the functions NAME() (the trained
network), NAME_batches(seed) (an endless iterator of batches) and NAME_eval(model) (a number). GPTQ is counted at the smaller of its file and its packed codes.
"""

import argparse
import importlib.util
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

import paretorch as pt
from paretorch.support.text import dense_bytes
from paretorch.training.folder import environment
from paretorch.workflows.posttraining.gptq import gptq, packed_bytes
from paretorch.workflows.shrink import shrink_network


@dataclass(frozen=True)
class Bed:
    """A trained network, its inputs and its measure."""

    model: nn.Module
    batches: Callable[[int], Iterator[Any]]
    evaluate: Callable[[nn.Module], float]


def load_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def convnet_bed(file: Path, root: Path, test: bool) -> Bed:
    source = load_file(Path(__file__).with_name("pretrained_convnet.py"))
    images = source.Images(root)

    def batches(seed: int) -> Iterator[Any]:
        return (x for x, _ in images.batches(seed, 64))

    return Bed(
        source.load_dense(file).eval(), batches, lambda model: images.accuracy(model, "test" if test else "validation")
    )


def file_bed(path: Path, name: str) -> Bed:
    source = load_file(path)
    return Bed(getattr(source, name)(), getattr(source, f"{name}_batches"), getattr(source, f"{name}_eval"))


def file_bytes(model: nn.Module) -> int:
    with tempfile.TemporaryDirectory() as folder:
        pt.save(model, Path(folder) / "model.pare")
        return (Path(folder) / "model.pare").stat().st_size


def shrunk_row(bed: Bed, budget: str, steps: int, seed: int) -> dict[str, Any]:
    start = time.perf_counter()
    found = shrink_network(bed.model, bed.batches(seed), budget=budget, steps=steps)
    seconds = time.perf_counter() - start
    return {
        "way": f"shrink, {steps} steps",
        "asked": budget,
        "seed": seed,
        "file_bytes": file_bytes(found.model),
        "measure": bed.evaluate(found.model),
        "wall_seconds": round(seconds),
        **found.record,
    }


def gptq_row(bed: Bed, text: str, seed: int) -> dict[str, Any]:
    bits, group = (int(part) for part in text.split("x"))
    start = time.perf_counter()
    found = gptq(bed.model, list(islice(bed.batches(seed), 56)), bits=bits, group=group)
    return {
        "way": f"GPTQ, {bits} bits in groups of {group}",
        "seed": seed,
        "file_bytes": min(file_bytes(found), packed_bytes(bed.model, bits, group)),
        "measure": bed.evaluate(found),
        "wall_seconds": round(time.perf_counter() - start),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--network", type=Path, help="the file of benchmarks/pretrained_convnet.py")
    parser.add_argument("--root", type=Path, help="the folder of CIFAR-10")
    parser.add_argument("--test", action="store_true", help="measure on test images, not on held-out training images")
    parser.add_argument("--bed", type=Path)
    parser.add_argument("--name", default="llama")
    parser.add_argument("--budgets", nargs="+", default=["1/10"])
    parser.add_argument("--steps", type=int, nargs="+", default=[0, 350])
    parser.add_argument("--gptq", nargs="*", default=[], help="rivals, such as 4x96: bits x group")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="of the batches")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    if asked.bed is not None:
        bed = file_bed(asked.bed, asked.name)
    else:
        bed = convnet_bed(asked.network, asked.root, asked.test)
    rows: list[dict[str, Any]] = [
        {"way": "dense", "file_bytes": dense_bytes(bed.model), "measure": bed.evaluate(bed.model)}
    ]
    print(rows[0], flush=True)

    def keep(row: dict[str, Any]) -> None:
        rows.append(row)
        print(row, flush=True)
        if asked.json is not None:
            content = {"environment": environment(torch.device("cpu")), "rows": rows}
            asked.json.write_text(json.dumps(content, indent=2) + "\n")

    for seed in asked.seeds:
        for text in asked.gptq:
            keep(gptq_row(bed, text, seed))
        for budget in asked.budgets:
            for steps in asked.steps:
                keep(shrunk_row(bed, budget, steps, seed))


if __name__ == "__main__":
    main()
