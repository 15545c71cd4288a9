"""Claim: learning what to drop, how many bits to keep and what layers share costs little beside training itself.

On one H200 (CIFAR-10 shapes, batch 128, bf16, compiled, one CUDA graph per step), seconds per epoch of 390 steps:
dense ResNet-20 <= 0.70, VGG-16 <= 0.70, WRN-28-10 <= 4.8; with relaxations ResNet-20 <= 1.10 x dense, and WRN-28-10
<= 1.05 x (sparsity), <= 1.08 x (precision) and <= 1.05 x (sharing, memory too). Last measured: see results/train-step.

How it is measured: the project's own loop, on random images (augmented each epoch as real ones are; evaluation and
checkpoints left out). All variants of a network live in one process; after a first epoch each that compiles and captures,
rounds of one epoch each are interleaved. Printed are the medians, their spread, and the median over the rounds of
the ratio to dense. WRN-28-10 runs a third of an epoch per round; times are scaled to 390 steps. Memory is the most that the
first epoch of a variant had allocated on the GPU, beyond what was there before it.

    python benchmarks/train_step.py                                   # a GPU if there is one, else a tiny run on the CPU
    python benchmarks/train_step.py --networks resnet20 --rounds 9 --json step.json
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from paretorch.training import RunFolder, Runtime, Trainer, prepare
from paretorch.training.folder import environment
from paretorch.training.progress import Progress
from paretorch.training.recipe_values import recipe_from
from paretorch.training.runtime import fast_on_gpu
from paretorch.zoo.data import Images

VARIANTS = {
    "dense": {},
    "sparse": {"sparsity": 0.95},
    "precise": {"bits": 2.0},
    "both": {"sparsity": 0.95, "bits": 1.0},
    "shared": {"sharing_options": {"templates": 2}},
}
STEPS = 390
QUIET = Progress("quiet")


def synthetic(count: int) -> Images:
    """Random images of CIFAR's shape."""
    generator = torch.Generator().manual_seed(0)

    def part(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        pixels = torch.randint(256, (size, 3, 32, 32), generator=generator, dtype=torch.uint8)
        return pixels, torch.randint(10, (size,), generator=generator)

    return Images("synthetic", part(count), part(16), 10, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


def make(network: str, variant: str, args: argparse.Namespace, folder: Path) -> Trainer:
    """A trainer, as `pare train` would build it."""
    # A small rate, since nothing can be learned here: what is timed are the steps, whatever they lead to.
    recipe = recipe_from(
        {"network": network, "epochs": 200, "data.batch": args.batch, "optimizer.lr": 0.01, **VARIANTS[variant]}
    )
    images = synthetic(args.images or (16_640 if network.startswith("wrn") else 50_000))
    runtime = Runtime(compile=not args.no_compile, graph=not args.no_graph, progress="quiet")
    setup = prepare(recipe, runtime, images)
    place = RunFolder(folder / f"{network}-{variant}", recipe)
    return Trainer(setup.model, setup.task, recipe, place, plan=setup.plan, runtime=runtime, device=setup.device)


def timed(trainer: Trainer) -> float:
    """Seconds of one epoch, scaled to 390 steps."""
    with fast_on_gpu(trainer.device):
        return float(trainer.train_epoch(QUIET)["seconds"]) * STEPS / trainer.task.steps


def first(network: str, variant: str, args: argparse.Namespace, folder: Path) -> tuple[Trainer, int | None]:
    """A trainer that has compiled and captured, and the bytes of GPU memory that this took."""
    if not torch.cuda.is_available():
        trainer = make(network, variant, args, folder)
        timed(trainer)
        return trainer, None
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    trainer = make(network, variant, args, folder)
    timed(trainer)
    return trainer, torch.cuda.max_memory_allocated() - before


def compile_ahead(networks: list[str], variants: list[str], args: argparse.Namespace) -> None:
    """Fill the compiler's cache with all networks and variants at once, one short process each."""
    threads = str(max(1, (os.cpu_count() or 1) // (len(networks) * len(variants))))
    shared = ["--batch", str(args.batch), "--images", str(4 * args.batch), "--rounds", "0", "--no-graph", "--no-ahead"]
    jobs = [
        subprocess.Popen(
            [sys.executable, __file__, "--networks", network, "--variants", variant, *shared],
            env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": threads},
            stdout=subprocess.DEVNULL,
        )
        for network in networks
        for variant in variants
    ]
    for job in jobs:
        job.wait()


def measure(network: str, variants: list[str], args: argparse.Namespace) -> dict[str, dict]:
    """Seconds per epoch of each variant, over interleaved rounds."""
    with tempfile.TemporaryDirectory() as folder:
        started = {variant: first(network, variant, args, Path(folder)) for variant in variants}
        trainers = {variant: trainer for variant, (trainer, _) in started.items()}
        rounds = [{variant: timed(trainer) for variant, trainer in trainers.items()} for _ in range(args.rounds)]
    torch.compiler.reset()  # the compiler allows only so many versions of one function in a process
    found = {}
    for variant in variants if rounds else []:
        seconds = [one[variant] for one in rounds]
        ratios = [one[variant] / one[variants[0]] for one in rounds]
        found[variant] = {
            "seconds": statistics.median(seconds),
            "spread": max(seconds) - min(seconds),
            "ratio": statistics.median(ratios),
            "rounds": seconds,
            "memory": started[variant][1],
        }
    return found


def main() -> None:
    """Measure, print, and write JSON where asked to."""
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default="resnet20,vgg16,wrn-28-10" if gpu else "resnet20")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="the first is what ratios refer to")
    parser.add_argument("--batch", type=int, default=128 if gpu else 16)
    parser.add_argument("--images", type=int, default=None if gpu else 48, help="images per round")
    parser.add_argument("--rounds", type=int, default=5 if gpu else 3)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--no-graph", action="store_true")
    parser.add_argument("--no-ahead", action="store_true", help="do not compile all variants in parallel first")
    parser.add_argument("--json", type=Path, help="write all numbers here")
    args = parser.parse_args()
    device = torch.device("cuda" if gpu else "cpu")
    networks, variants = args.networks.split(","), args.variants.split(",")
    begun = time.perf_counter()
    if gpu and not (args.no_compile or args.no_ahead):
        compile_ahead(networks, variants, args)
        print(f"compiled ahead in {time.perf_counter() - begun:.0f} s", flush=True)
    results = {}
    for network in networks:
        results[network] = measure(network, variants, args)
        for variant, found in results[network].items():
            told = f"{found['seconds']:9.3f} s per epoch  (spread {found['spread']:.3f})  {found['ratio']:.3f} x {variants[0]}"
            memory = "" if found["memory"] is None else f"  {found['memory'] / 2**30:.2f} GiB"
            print(f"{network:12} {variant:8} {told}{memory}", flush=True)
    total = time.perf_counter() - begun
    print(f"{environment(device)['hardware']}, torch {torch.__version__}, batch {args.batch}, {total:.0f} s in all")
    if args.json:
        content = {"results": results, "environment": environment(device), "batch": args.batch, "total_seconds": total}
        args.json.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
