"""One rank of two: `python -m tests.precision_rivals.rank FOLDER CASES RANK`; a case is [kind, rival, model]."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from paretorch import compress
from tests.contract.cases import MODELS, STEPS, build
from tests.contract.loop import optimizer_of
from tests.contract.rank import half_a_batch
from tests.precision_rivals.cases import RIVALS


def main(folder: str, cases: str, rank: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=int(rank), world_size=2)
    for kind, rival, model in json.loads(cases):
        network = build(model)
        plan = compress(network, *RIVALS[rival](), steps=STEPS)
        if kind == "ddp":
            runner: nn.Module = DistributedDataParallel(network)
        else:
            for child in network.children():
                if any(True for _ in child.parameters()):
                    fully_shard(child)
            runner = fully_shard(network)
        optimizer, x = optimizer_of(plan), MODELS[model].batch(8)
        half_a_batch(runner, plan, optimizer, x, int(rank), 5)
        soft = plan.dense_state_dict()
        plan.harden(optimizer)
        half_a_batch(runner, plan, optimizer, x, int(rank), 2)
        torch.save({"soft": soft, "hard": plan.dense_state_dict()}, Path(folder) / f"{kind}-{rival}-{model}-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
