"""One rank of two: `python -m tests.precision_activations.rank FOLDER RANK`."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from paretorch import Plan
from tests.precision_activations.nets import attach, batch, build, optimizer_of

CASES = [("ddp", "position"), ("ddp", "beside"), ("ddp", "fixed"), ("fsdp", "position"), ("fsdp", "beside")]


def half_a_batch(runner: nn.Module, plan: Plan, optimizer: torch.optim.Optimizer, rank: int, steps: int) -> None:
    piece, target = batch(8).chunk(2)[rank], torch.arange(8).chunk(2)[rank]
    for _ in range(steps):
        nn.functional.cross_entropy(runner(piece), target % 3).backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()


def main(folder: str, rank: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=int(rank), world_size=2)
    found = {}
    for kind, method in CASES:
        network = build()
        network.relu.inplace = False  # FSDP2 shards no module that works in place
        plan = attach(network, method)
        if kind == "ddp":
            runner: nn.Module = DistributedDataParallel(network)
        else:
            for child in network.children():
                fully_shard(child)
            runner = fully_shard(network)
        optimizer = optimizer_of(plan)
        half_a_batch(runner, plan, optimizer, int(rank), 5)
        plan.harden(optimizer)
        half_a_batch(runner, plan, optimizer, int(rank), 2)
        found[f"{kind} {method}"] = plan.plain_state_dict()
    torch.save(found, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
