"""Claim: `pare train` on a folder of photographs takes no more processor time per image than a plain loop over torch's DataLoader.

    python benchmarks/image_folder.py --json results/image-folder/cpu.json
    python benchmarks/image_folder.py --folder imagenette2 --size 128     # a folder with train/CLASS and val/CLASS

Three ways to train ResNet-18 on the same JPEG files by the same optimizer, in epochs of 20 steps of 32 images, in turns on one CPU machine, with one
thread per process and two processes that decode in all: a plain loop (DataLoader, Pillow; random resized crops and mirroring), `pare train`, and
`torchrun --nproc-per-node 2 … pare train`. Beside them the DataLoader of the plain loop without a network. Without --folder the photographs are smooth noise of
500 × 375 pixels.

Each way runs one epoch and three. Images per second are those of the last two epochs by the clock, so that other work on the machine is in
them. Processor seconds per 1,000 images are those of all processes of the long run less those of the short one, which leaves out the
start. The claim is about the latter: the median over the rounds of the ratio to the plain loop of the same round is at most 1.05 for one
process. Two ranks share the cores and talk at every batch norm: what they cost is told.
"""

import argparse
import json
import os
import resource
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

MOST = 1.05
BATCH, STEPS, WORKERS = 32, 20, 2
SHORT, LONG = 1, 3  # epochs


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
            (file, label) for label, name in enumerate(classes) for file in sorted((folder / "train" / name).iterdir())
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


def plain_loop(folder: Path, size: int, epochs: int, train: bool) -> list[float]:
    """Seconds of each epoch."""
    torch.manual_seed(0)
    data = Photographs(folder, size)
    loader = DataLoader(data, BATCH, shuffle=True, drop_last=True, num_workers=WORKERS, persistent_workers=True)
    model = zoo.build("resnet18", classes=data.classes).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=5e-4)
    mean, std = torch.tensor((0.485, 0.456, 0.406)).view(3, 1, 1), torch.tensor((0.229, 0.224, 0.225)).view(3, 1, 1)
    found = []
    for _ in range(epochs):
        begun = time.perf_counter()
        for pixels, labels in loader:
            if train:
                learn(model, optimizer, (pixels / 255 - mean) / std, labels)
        found.append(time.perf_counter() - begun)
    return found


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, labels: torch.Tensor) -> None:
    loss = F.cross_entropy(model(x.contiguous(memory_format=torch.channels_last)), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if not torch.isfinite(loss):
        raise SystemExit("the plain loop diverged")


def run_plain(root: Path, size: int, epochs: int, way: str) -> list[float]:
    """The plain loop in a process of its own."""
    words = ["--folder", str(root / "imagenet"), "--size", str(size), "--plain", str(epochs)]
    words += ["--reading"] if way == "reading alone" else []
    done = subprocess.run([sys.executable, __file__, *words], check=True, env=ENVIRONMENT, stdout=subprocess.PIPE)
    found: list[float] = json.loads(done.stdout)
    return found


def run_pare(root: Path, size: int, epochs: int, way: str) -> list[float]:
    """`pare train`, in one process or two; seconds of each epoch, as metrics.jsonl has them."""
    ranks = 2 if way == "two ranks" else 1
    words = ["train", "--network", "resnet18", "--data", "imagenet", "--root", str(root), "--batch", str(BATCH)]
    words += ["--lr", "0.01", "--device", "cpu", "--quiet", "--workers", str(WORKERS // ranks), "--epochs", str(epochs)]
    words += ["--set", f"data.options.size={size}", "--checkpoint-epochs", str(epochs)]
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "paretorch.cli", *words, "--out", out]
        if ranks > 1:
            launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--rdzv-backend", "c10d"]
            command[1:1] = [*launcher, "--rdzv-endpoint", "localhost:0"]
        subprocess.run(command, check=True, env=ENVIRONMENT, stderr=subprocess.DEVNULL)
        rows = [json.loads(line) for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]
    if rows[0]["step"] != STEPS:
        raise SystemExit(f"an epoch had {rows[0]['step']} steps, not {STEPS}")
    return [float(row["seconds"]) for row in rows]


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
WAYS: dict[str, Callable[[Path, int, int, str], list[float]]] = {
    "plain loop": run_plain,
    "one process": run_pare,
    "two ranks": run_pare,
    "reading alone": run_plain,
}


def spent() -> float:
    """Processor seconds of the processes that have ended."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def measure(root: Path, size: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    found = {name: {"images per second": [], "processor seconds per 1,000 images": []} for name in WAYS}
    for number in range(rounds):
        for name, way in WAYS.items():
            marks, seconds = [spent()], []
            for epochs in (SHORT, LONG):
                seconds = way(root, size, epochs, name)
                marks.append(spent())
            images = BATCH * STEPS * (LONG - SHORT)
            speed = images / sum(seconds[SHORT:])
            cost = 1000 * ((marks[2] - marks[1]) - (marks[1] - marks[0])) / images
            for values, one in zip(found[name].values(), (speed, cost), strict=True):
                values.append(round(one, 3))
            print(
                f"round {number + 1}, {name}: {speed:.1f} images per second, {cost:.2f} processor seconds per 1,000 images",
                flush=True,
            )
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
    parser.add_argument("--plain", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--reading", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.plain is not None:
        print(json.dumps(plain_loop(asked.folder, asked.size, asked.plain, train=not asked.reading)))
        return
    with tempfile.TemporaryDirectory() as place:
        target = Path(place) / "imagenet"
        if asked.folder is None:
            write_photographs(target)
        else:
            chosen_photographs(asked.folder, target)
        found = measure(Path(place), asked.size, asked.rounds)
    costs = {name: values["processor seconds per 1,000 images"] for name, values in found.items()}
    ratios = {
        name: statistics.median(one / plain for one, plain in zip(costs[name], costs["plain loop"], strict=True))
        for name in ("one process", "two ranks")
    }
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f} × the processor time of the plain loop, median of {asked.rounds} rounds")
    holds = ratios["one process"] <= MOST
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
            "ways": found,
            "ratios_of_processor_time": ratios,
            "holds": holds,
        }
        asked.json.parent.mkdir(parents=True, exist_ok=True)
        asked.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
