"""One rank of a two-rank run: `python -m tests.sharing.rank ddp|fsdp FOLDER CASES RANK`."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.contract.loop import optimizer_of
from tests.contract.rank import half_a_batch
from tests.sharing.cases import attach, batch, build


def main(kind: str, folder: str, cases: str, rank: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=int(rank), world_size=2)
    for method, model in json.loads(cases):
        network = build(model)
        plan = attach(network, method)
        if kind == "ddp":
            runner: nn.Module = DistributedDataParallel(network)
        else:
            for child in network.children():
                if any(True for _ in child.parameters()):
                    fully_shard(child)
            runner = fully_shard(network)
        optimizer = optimizer_of(plan)
        x = batch(model, 8)
        half_a_batch(runner, plan, optimizer, x, int(rank), 5)
        soft = plan.dense_state_dict()
        plan.harden(optimizer)
        half_a_batch(runner, plan, optimizer, x, int(rank), 2)
        torch.save({"soft": soft, "hard": plan.dense_state_dict()}, Path(folder) / f"{method}-{model}-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
