"""One of two ranks of a loop with accelerate: python -m tests.training.accelerate_rank FOLDER PORT RANK."""

import os
import sys
from pathlib import Path

import torch
from accelerate import Accelerator

import paretorch as pt
from tests.training.ten_lines import CLIP, SEARCH, STEPS, Net, Same, compressed


def main(folder: Path, port: str, rank: int) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "ACCELERATE_USE_CPU": "true"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == 2
    for start, stop in ((0, 3), (3, STEPS)):
        network = Net()
        plan, optimizer = compressed(network)
        model, optimizer = accelerator.prepare(network, optimizer)
        if start:
            accelerator.load_state(str(folder / "state"))
            plan.load_state_dict(torch.load(folder / "plan.pt", weights_only=True))
        batch = torch.utils.data.default_collate([Same(rank)[0]] * 2)
        for step in range(start, stop):
            accelerator.backward(model(**batch)["loss"])
            accelerator.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            plan.step()
            optimizer.zero_grad()
            if step + 1 == SEARCH:
                plan.harden(optimizer.optimizer)
        if not start:
            accelerator.save_state(str(folder / "state"))
            if accelerator.is_main_process:
                torch.save(plan.state_dict(), folder / "plan.pt")
            accelerator.wait_for_everyone()
            accelerator.free_memory()
    torch.save(network.state_dict(), folder / f"{rank}.pt")
    small = plan.finalize()
    if accelerator.is_main_process:
        pt.save(accelerator.unwrap_model(small), folder / "small.pare")
    accelerator.end_training()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
