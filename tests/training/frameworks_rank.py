"""One of two ranks under another's trainer: python -m tests.training.frameworks_rank FOLDER FRAMEWORK PORT RANK."""

import os
import sys
from pathlib import Path

import torch

from tests.training.ten_lines import STEPS, Net, compressed


def by_transformers(folder: Path, rank: int, stop: int | None, start: str | None) -> torch.nn.Module:
    from tests.training.by_transformers import hf_trainer  # each takes seconds to import, and the other is not needed

    model = Net()
    _, optimizer = compressed(model)
    trainer = hf_trainer(model, optimizer, folder, rank, ddp_backend="gloo")
    trainer.args.max_steps = stop or trainer.args.max_steps
    trainer.train(resume_from_checkpoint=start and str(folder / f"checkpoint-{start}"))
    return model


def by_lightning(folder: Path, rank: int, stop: int | None, start: str | None) -> torch.nn.Module:
    from tests.training.by_lightning import Module, fit

    module = Module()
    ranks = {"strategy": "ddp", "devices": 2, "use_distributed_sampler": False}
    fit(module, folder, stop or STEPS, start and str(folder / f"step={start}.ckpt"), rank, **ranks)
    return module.net


def main(folder: Path, framework: str, port: str, rank: int) -> None:
    torch.set_num_threads(1)
    # As a launcher sets them; Lightning's own launcher would start the second rank itself.
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "NODE_RANK": "0"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    train = by_transformers if framework == "transformers" else by_lightning
    train(folder, rank, 3, None)
    torch.save(train(folder, rank, None, "3").state_dict(), folder / f"{rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:4], int(sys.argv[4]))
