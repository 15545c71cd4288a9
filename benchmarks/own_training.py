"""Claim: what makes a step cheap does not change what is learned.

ResNet-20 on the first 10,000 images of CIFAR-10, 20 epochs in the user's own loop: the average loss of each epoch, and the accuracy on 2,000
test images before and after `harden`. Run by two versions of the library, each from its own tree, it compares them; seeds tell the noise.

    PYTHONPATH=src      python benchmarks/own_training.py --data data/cifar-10-batches-bin --name after --output losses.jsonl
    PYTHONPATH=old/src  python benchmarks/own_training.py --data data/cifar-10-batches-bin --name before --output losses.jsonl
"""

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import paretorch as pt
from paretorch.zoo import build

EPOCHS, BATCH = 20, 128


def read(path: Path, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The first images of a file of CIFAR-10, and their labels."""
    rows = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).view(-1, 3073)[:count].to(device)
    images = rows[:, 1:].reshape(-1, 3, 32, 32).float().div_(255)
    return (images - 0.47) / 0.25, rows[:, 0].long()


def method_of(name: str) -> Any:
    """The method, from scratch: options that an older version lacks are left out."""
    if name == "smol":
        return pt.SMOL(target_bits=3.0)
    options = {"start": "uniform"} if "start" in pt.ContinuousSparsification.__dataclass_fields__ else {}
    return pt.ContinuousSparsification(target=0.9, **options)


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).float().mean()
    model.train()
    return float(right)


def train(method: str, seed: int, parts: list[tuple[Tensor, Tensor]]) -> dict[str, Any]:
    (images, labels), test = parts
    torch.manual_seed(seed)
    model, steps = build("resnet20").to(images.device), len(images) // BATCH
    plan = pt.compress(model, method_of(method), steps=EPOCHS * steps, seed=seed)
    optimizer = torch.optim.SGD(plan.param_groups(weight_decay=5e-4), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * steps)
    order, losses, begun = torch.Generator().manual_seed(seed), [], time.perf_counter()
    for _ in range(EPOCHS):
        chosen, total = torch.randperm(len(images), generator=order).to(images.device), images.new_zeros(())
        for batch in chosen[: steps * BATCH].view(steps, BATCH):
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            plan.step()
            optimizer.zero_grad()
            schedule.step()
            total += loss.detach()
        losses.append(float(total) / steps)
    soft, seconds = accuracy(model, *test), time.perf_counter() - begun
    plan.harden(optimizer)
    return {"losses": losses, "soft": soft, "hard": accuracy(model, *test), "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of CIFAR-10, binary version")
    parser.add_argument("--name", required=True, help="of this version, in the output")
    parser.add_argument("--methods", default="cs,smol")
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--output", type=Path, required=True, help="a line is added to this file for each training")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    parts = [read(args.data / "data_batch_1.bin", 10_000, device), read(args.data / "test_batch.bin", 2_000, device)]
    for method in args.methods.split(","):
        for seed in map(int, args.seeds.split(",")):
            record = {"version": args.name, "method": method, "seed": seed, **train(method, seed, parts)}
            with args.output.open("a") as file:
                file.write(json.dumps(record) + "\n")
            print(
                f"{args.name} {method} seed {seed}: loss {record['losses'][-1]:.4f}, accuracy {record['soft']:.4f}, rounded "
                f"{record['hard']:.4f}, {record['seconds']:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
