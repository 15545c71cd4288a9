"""One rank of a two-rank run: `python -m tests.contract.rank TABLE FOLDER CASES RANK`.

TABLE is a module with `start(method, model)`; a case is [kind, method, model], kind "ddp" or "fsdp".
"""

import importlib
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from paretorch import Plan
from tests.contract.loop import optimizer_of


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


def main(table: str, folder: str, cases: str, rank: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=int(rank), world_size=2)
    for kind, method, model in json.loads(cases):
        network, plan, x = importlib.import_module(table).start(method, model)
        runner = spread(network, kind)
        optimizer = optimizer_of(plan)
        half_a_batch(runner, plan, optimizer, x, int(rank), 5)
        soft = plan.dense_state_dict()
        plan.harden(optimizer)
        half_a_batch(runner, plan, optimizer, x, int(rank), 2)
        torch.save({"soft": soft, "hard": plan.dense_state_dict()}, Path(folder) / f"{kind}-{method}-{model}-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
