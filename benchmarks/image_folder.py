"""Claim: `pare train` reads a folder of photographs as fast as a plain loop over torch's DataLoader, on one process and on two gloo ranks.

    python benchmarks/image_folder.py --json results/image-folder/cpu.json
    python benchmarks/image_folder.py --folder imagenette2 --size 128     # a folder with train/CLASS and val/CLASS

Three ways to train ResNet-18 on the same JPEG files, 20 steps of 32 images each, in turns on one CPU machine, with one thread per process
and two processes that decode in all: a plain loop (DataLoader, Pillow, SGD; random resized crops and mirroring), `pare train`, and
`torchrun --nproc-per-node 2 … pare train`. The first 20 steps of each are not counted: processes start, files are read for the first time. Beside
them the DataLoader of the plain loop alone, without a network. Two ranks on one machine share its cores, so they are not faster than one process;
the question is what they cost. Without --folder the photographs are smooth noise of 500 × 375 pixels.

Holds if the median of the ratios to the plain loop of the same round is at least 0.85 for one process and 0.7 for two ranks, whose
batch norms talk at every layer.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from paretorch import zoo
from paretorch.training.folder import environment

LEAST = {"one process": 0.85, "two ranks": 0.7}
BATCH, STEPS, WORKERS = 32, 20, 2


def write_photographs(folder: Path, classes: int = 10, count: int = BATCH * STEPS) -> Path:
    """Class folders of smooth noise, as large as most images of ImageNet."""
    chance = np.random.default_rng(0)
    for part, images in (("train", count), ("val", classes)):
        for number in range(images):
            place = folder / part / f"class{number % classes}"
            place.mkdir(parents=True, exist_ok=True)
            pixels = chance.integers(0, 255, (24, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).resize((500, 375), Image.Resampling.BICUBIC).save(place / f"{number}.jpg")
    return folder


class Photographs(Dataset[Any]):
    """What a user would write: random resized crops, mirrored half of the time."""

    def __init__(self, folder: Path, size: int) -> None:
        classes = sorted(path.name for path in (folder / "train").iterdir())
        self.files = [
            (file, label)
            for label, name in enumerate(classes)
            for file in sorted((folder / "train" / name).iterdir())[: -(-BATCH * STEPS // len(classes))]
        ]
        self.size, self.classes = size, len(classes)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        file, label = self.files[number]
        with Image.open(file) as opened:
            image = opened.convert("RGB")
        area = image.width * image.height * float(torch.empty(()).uniform_(0.08, 1))
        ratio = float(torch.empty(()).uniform_(3 / 4, 4 / 3))
        wide, high = (
            min(side, round(one))
            for side, one in zip(image.size, ((area * ratio) ** 0.5, (area / ratio) ** 0.5), strict=True)
        )
        left, top = (int(torch.randint(room + 1, ())) for room in (image.width - wide, image.height - high))
        image = image.resize((self.size, self.size), Image.Resampling.BICUBIC, box=(left, top, left + wide, top + high))
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        return pixels.flip(2) if torch.rand(()) < 0.5 else pixels, label


def plain_loop(folder: Path, size: int, train: bool) -> float:
    """Images per second of the second epoch."""
    torch.manual_seed(0)
    data = Photographs(folder, size)
    loader = DataLoader(data, BATCH, shuffle=True, drop_last=True, num_workers=WORKERS, persistent_workers=True)
    model = zoo.build("resnet18", classes=data.classes).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    mean, std = torch.tensor((0.485, 0.456, 0.406)).view(3, 1, 1), torch.tensor((0.229, 0.224, 0.225)).view(3, 1, 1)
    seconds = images = 0.0
    for epoch in range(2):
        begun = time.perf_counter()
        for step, (pixels, labels) in enumerate(loader):
            if step == STEPS:
                break
            if train:
                learn(model, optimizer, (pixels / 255 - mean) / std, labels)
            images += epoch * len(labels)
        seconds = time.perf_counter() - begun
    return images / seconds


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, labels: torch.Tensor) -> None:
    loss = F.cross_entropy(model(x.contiguous(memory_format=torch.channels_last)), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if not torch.isfinite(loss):
        raise SystemExit("the plain loop diverged")


def pare_train(root: Path, size: int, ranks: int) -> float:
    """Images per second of the second epoch, as metrics.jsonl has it."""
    words = [
        "train",
        "--network",
        "resnet18",
        "--data",
        "imagenet",
        "--root",
        str(root),
        "--epochs",
        "2",
        "--batch",
        str(BATCH),
    ]
    words += ["--lr", "0.01", "--device", "cpu", "--quiet", "--workers", str(WORKERS // ranks)]
    words += ["--set", f"data.options.size={size}", "--checkpoint-epochs", "2"]
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "paretorch.cli", *words, "--out", out]
        if ranks > 1:
            launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--rdzv-backend", "c10d"]
            command[1:1] = [*launcher, "--rdzv-endpoint", "localhost:0"]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)
        row = json.loads((Path(out) / "metrics.jsonl").read_text().splitlines()[1])
    if row["step"] != 2 * STEPS:
        raise SystemExit(f"an epoch had {row['step'] // 2} steps, not {STEPS}")
    return BATCH * STEPS / float(row["seconds"])


def measure(root: Path, size: int, rounds: int) -> dict[str, list[float]]:
    folder = root / "imagenet"
    ways: dict[str, Callable[[], float]] = {
        "plain loop": lambda: plain_loop(folder, size, train=True),
        "one process": lambda: pare_train(root, size, 1),
        "two ranks": lambda: pare_train(root, size, 2),
        "reading alone": lambda: plain_loop(folder, size, train=False),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name, way in ways.items():
            found[name].append(way())
            print(f"round {number + 1}, {name}: {found[name][-1]:.1f} images per second", flush=True)
    return found


def chosen_photographs(source: Path, target: Path) -> Path:
    """Links to as many files of a folder as are read, so that an epoch has the steps that are measured."""
    for part, count in (("train", BATCH * STEPS), ("val", 10)):
        classes = sorted(path for path in (source / part).iterdir() if path.is_dir())
        for number, place in enumerate(classes):
            files = sorted(place.iterdir())[: count // len(classes) + (number < count % len(classes))]
            (target / part / place.name).mkdir(parents=True)
            for file in files:
                (target / part / place.name / file.name).symlink_to(file.resolve())
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="Photographs as train/CLASS and val/CLASS.")
    parser.add_argument("--size", type=int, default=32, help="Height and width of the crops.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        target = Path(place) / "imagenet"
        if asked.folder is None:
            write_photographs(target)
        else:
            chosen_photographs(asked.folder, target)
        found = measure(Path(place), asked.size, asked.rounds)
    ratios = {
        name: statistics.median(one / plain for one, plain in zip(found[name], found["plain loop"], strict=True))
        for name in LEAST
    }
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f} × the plain loop, median of {asked.rounds} rounds")
    holds = all(ratio >= LEAST[name] for name, ratio in ratios.items())
    print(f"claim {'holds' if holds else 'FAILS'}")
    if asked.json is not None:
        content = {
            **environment(torch.device("cpu")),
            "command": shlex.join(["python", *sys.argv]),
            "cores": len(os.sched_getaffinity(0)),
            "load": os.getloadavg()[0],
            "images": str(asked.folder.name) if asked.folder else "smooth noise, JPEG, 500 × 375",
            "size": asked.size,
            "batch": BATCH,
            "steps": STEPS,
            "images_per_second": found,
            "ratios": ratios,
            "holds": holds,
        }
        asked.json.parent.mkdir(parents=True, exist_ok=True)
        asked.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
