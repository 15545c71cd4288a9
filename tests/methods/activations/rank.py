"""One rank of two: `python -m tests.methods.activations.rank FOLDER RANK`."""

import sys
from pathlib import Path

import torch
from torch import Tensor

from tests.contract.loop import optimizer_of
from tests.contract.rank import half_a_batch, spread
from tests.meeting import meet
from tests.methods.activations.nets import attach, batch, build

CASES = [
    ("ddp", "position"),
    ("ddp", "beside"),
    ("ddp", "fixed"),
    ("ddp", "pact"),
    ("fsdp", "position"),
    ("fsdp", "beside"),
]


def train_one(kind: str, method: str, rank: int) -> dict[str, Tensor]:
    network = build()
    network.relu.inplace = False  # FSDP2 shards no module that works in place
    plan = attach(network, method)
    runner = spread(network, kind)
    optimizer = optimizer_of(plan)
    half_a_batch(runner, plan, optimizer, batch(8), rank, 5)
    plan.harden(optimizer)
    half_a_batch(runner, plan, optimizer, batch(8), rank, 2)
    return plan.plain_state_dict()


def main(folder: str, rank: str) -> None:
    def work() -> None:
        found = {f"{kind} {method}": train_one(kind, method, int(rank)) for kind, method in CASES}
        torch.save(found, Path(folder) / f"{rank}.pt")

    meet(folder, int(rank), work)


if __name__ == "__main__":
    main(*sys.argv[1:])
