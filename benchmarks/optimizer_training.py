"""Aim: in training on a CPU, a step of AvaGrad over 25 M parameters takes at most 1.0 x the time of one of torch's foreach Adam.

    python benchmarks/optimizer_training.py                 # what has been shown is in results/optimizers-step
    python benchmarks/optimizer_training.py --pruned 0.5    # half of the weights pruned: they have no gradient

Every optimizer trains the same network (blocks of a linear layer, layer norm and GELU) in a process of its own, as a user's
would. (optimizer_step.py times all of them in one process. A foreach step makes temporaries of the size of the network,
and what these cost depends on what others have left on the heap: it differs by a factor of two.) The processes take
turns; a round is one of each. Of a process the median of its steps after the first few counts, `step` alone; the table
has the medians over the rounds of that time and of the ratio within a round, with their quartiles.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from optimizer_step import REFERENCE, make_row, optimizers, show
from torch import nn
from torch.nn import functional as F

from paretorch.training.folder import environment

_WARM_UP = 5
_CLASSES = 10


def network(width: int, depth: int, pruned: float) -> nn.Module:
    """Blocks of equal width; the share `pruned` of each one's weights is 0 and stays 0."""
    blocks = [nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()) for _ in range(depth)]
    for linear, *_ in blocks if pruned else ():
        mask = (torch.rand_like(linear.weight) >= pruned).float()
        with torch.no_grad():
            linear.weight.mul_(mask)
        linear.weight.register_hook(mask.mul)
    return nn.Sequential(*blocks, nn.Linear(width, _CLASSES))


def time_one(name: str, args: argparse.Namespace) -> dict[str, float]:
    """Train with one optimizer: the median milliseconds of its steps, and what there is to step."""
    torch.manual_seed(0)
    model = network(args.width, args.depth, args.pruned)
    x, y = torch.randn(args.batch, args.width), torch.randint(_CLASSES, (args.batch,))
    parameters = list(model.parameters())
    optimizer = optimizers("cpu")[name](parameters)
    times = []
    for _ in range(_WARM_UP + args.steps):
        F.cross_entropy(model(x), y).backward()
        begin = time.perf_counter()
        optimizer.step()
        times.append((time.perf_counter() - begin) * 1e3)
        optimizer.zero_grad()
    counts = {"parameters": sum(p.numel() for p in parameters), "tensors": len(parameters)}
    return {"ms": statistics.median(times[_WARM_UP:]), **counts}


def in_a_process(name: str, words: list[str]) -> dict[str, float]:
    """`time_one` where nothing else has been."""
    command = [sys.executable, str(Path(__file__).resolve()), *words, "--one", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name}: {done.stderr.strip().splitlines()[-1]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=1000)
    parser.add_argument("--depth", type=int, default=25)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20, help="steps of a process that are timed")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pruned", type=float, default=0.0, help="share of the weights without a gradient")
    parser.add_argument("--only", nargs="*", help="names of the optimizers to time")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(time_one(args.one, args)))
        return
    known = list(optimizers("cpu"))
    if unknown := [name for name in args.only or [] if name not in known]:
        parser.error(f"--only: there is no {unknown[0]!r} here, only {', '.join(known)}")
    if not 0 <= args.pruned < 1:
        parser.error(f"--pruned: {args.pruned:g} is no share of the weights: it must be at least 0 and below 1")
    names = ("width", "depth", "batch", "steps", "pruned")
    words = [word for name in names for word in (f"--{name}", str(getattr(args, name)))]
    field = args.only or known
    rounds = [{name: in_a_process(name, words) for name in field} for _ in range(args.rounds)]
    print(f"torch {torch.__version__}, CPU, {torch.get_num_threads()} threads, each optimizer in a process of its own")
    size = rounds[0][field[0]]
    rows = [
        make_row(name, [found[name]["ms"] for found in rounds], int(size["parameters"]), int(size["tensors"]))
        for name in field
    ]
    show(f"training, {args.pruned:.0%} of the weights pruned", rows, "cpu", None)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        facts = {**environment(torch.device("cpu")), "pruned": args.pruned, "to": REFERENCE["cpu"]}
        args.json.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
