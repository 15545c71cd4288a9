"""One rank of a two-rank run: `python -m tests.contract.rank FOLDER CASES RANK`.

A case is [table, kind, method, model]: a module with `start(method, model)`, "ddp" or "fsdp", and what to start.
"""

import importlib
import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from paretorch import Plan
from tests.contract.loop import optimizer_of
from tests.meeting import meet


def half_a_batch(
    runner: nn.Module, plan: Plan, optimizer: torch.optim.Optimizer, x: torch.Tensor, rank: int, steps: int
) -> None:
    piece, target = x.chunk(2)[rank], torch.arange(len(x)).chunk(2)[rank]
    for _ in range(steps):
        output = runner(piece)
        nn.functional.cross_entropy(output, target % output.shape[1]).backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()


def spread(network: nn.Module, kind: str) -> nn.Module:
    """The network over both ranks."""
    if kind == "ddp":
        return DistributedDataParallel(network)
    for child in network.children():
        if any(True for _ in child.parameters()):
            fully_shard(child)
    return fully_shard(network)


def train_one(table: str, kind: str, method: str, model: str, rank: int) -> dict[str, dict[str, torch.Tensor]]:
    network, plan, x = importlib.import_module(table).start(method, model)
    runner = spread(network, kind)
    optimizer = optimizer_of(plan)
    half_a_batch(runner, plan, optimizer, x, rank, 5)
    soft = plan.dense_state_dict()
    plan.harden(optimizer)
    half_a_batch(runner, plan, optimizer, x, rank, 2)
    return {"soft": soft, "hard": plan.dense_state_dict()}


def main(folder: str, cases: str, rank: str) -> None:
    def work() -> None:
        for number, case in enumerate(json.loads(cases)):
            torch.save(train_one(*case, int(rank)), Path(folder) / f"{number}-{rank}.pt")

    meet(folder, int(rank), work)


if __name__ == "__main__":
    main(*sys.argv[1:])
