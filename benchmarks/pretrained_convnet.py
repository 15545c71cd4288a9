"""Claim: on a trained network of depthwise convolutions the defaults are the best choice within a few hundred steps.

The network (inverted residuals, squeeze-and-excite, batch norm; 0.7 M weights) is trained on CIFAR-10 once and kept in `--network FILE`. Then, each
from that file, with the trained network as the teacher and `--steps` steps of 16 images in all:

    zeros     90 % zeros (`--target`): Continuous Sparsification, magnitude pruning at once, gradual magnitude pruning, ST-3
    rounding  8, 4 and 3 bits without training, SMOL against max-abs rounding per channel, norms estimated anew for both
    budget    a file of a tenth of the dense bytes: the README's two methods against SMOL alone

Accuracies are on 5,000 training images that no training sees, and with `--test` on the test images; learning rates were chosen on the former.

    python benchmarks/pretrained_convnet.py --root data --epochs 8 --only dense
    python benchmarks/pretrained_convnet.py --root data --only zeros --seeds 0,1,2 --test --json zeros.json
"""

import argparse
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import paretorch as pt
from paretorch.core.method import Method
from paretorch.methods.sparsity.rivals import ST3, GradualMagnitude, MagnitudePruning
from paretorch.training.folder import environment
from paretorch.zoo.data.cifar import load as load_cifar

VALIDATION = 5_000
STAGES = (
    (1, 16, 1, 1),
    (4, 24, 2, 2),
    (4, 40, 2, 2),
    (6, 80, 3, 2),
    (6, 112, 2, 1),
)  # expansion, width, blocks, stride


class Block(nn.Module):
    """Expand, convolve each channel by itself, squeeze and excite, project."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int) -> None:
        super().__init__()
        width = inputs * expansion
        self.expand = nn.Sequential(nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.SiLU())
        self.depthwise = nn.Sequential(
            nn.Conv2d(width, width, 3, stride, 1, groups=width, bias=False), nn.BatchNorm2d(width), nn.SiLU()
        )
        self.squeeze, self.excite = nn.Conv2d(width, inputs // 4, 1), nn.Conv2d(inputs // 4, width, 1)
        self.project = nn.Sequential(nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.residual = inputs == outputs and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(self.expand(x))
        y = y * torch.sigmoid(self.excite(F.silu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        y = self.project(y)
        return x + y if self.residual else y


def build() -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.SiLU()]
    inputs = 16
    for expansion, width, blocks, stride in STAGES:
        for index in range(blocks):
            layers.append(Block(inputs, width, expansion, stride if index == 0 else 1))
            inputs = width
    head = [nn.Conv2d(inputs, 320, 1, bias=False), nn.BatchNorm2d(320), nn.SiLU()]
    return nn.Sequential(*layers, *head, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(320, 10))


class Images:
    """CIFAR-10 in memory: training, validation and test images, normalised."""

    def __init__(self, root: Path) -> None:
        data = load_cifar("cifar10", root)
        self.parts = {
            "train": (data.train[0][:-VALIDATION], data.train[1][:-VALIDATION]),
            "validation": (data.train[0][-VALIDATION:], data.train[1][-VALIDATION:]),
            "test": data.test,
        }

    def batches(self, seed: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        pixels, labels = self.parts["train"]
        while True:
            for rows in torch.randperm(len(pixels), generator=generator).split(size):
                x = F.pad(_normal(pixels[rows]), (4, 4, 4, 4), mode="reflect")
                top, left = torch.randint(0, 9, (2,), generator=generator).tolist()
                x = x[:, :, top : top + 32, left : left + 32]
                yield torch.where(torch.rand(len(x), 1, 1, 1, generator=generator) < 0.5, x.flip(-1), x), labels[rows]

    @torch.no_grad()
    def accuracy(self, model: nn.Module, part: str) -> float:
        was, (pixels, labels) = model.training, self.parts[part]
        model.eval()
        right = sum(
            int((model(_normal(x)).argmax(1) == y).sum())
            for x, y in zip(pixels.split(500), labels.split(500), strict=True)
        )
        model.train(was)
        return 100.0 * right / len(labels)


def _normal(pixels: Tensor) -> Tensor:
    return (pixels.float() / 255.0 - 0.473) / 0.25


def train_dense(images: Images, epochs: int, file: Path) -> None:
    torch.manual_seed(0)
    model = build().to(memory_format=torch.channels_last)
    steps = epochs * ((50_000 - VALIDATION) // 128)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.4, steps, pct_start=0.25)
    start = time.time()
    for step, (x, y) in zip(range(1, steps + 1), images.batches(0, 128), strict=False):
        F.cross_entropy(model(x.contiguous(memory_format=torch.channels_last)), y, label_smoothing=0.1).backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % (steps // epochs) == 0:
            done = images.accuracy(model, "validation")
            print(f"step {step} of {steps}: {done:.2f} %, {time.time() - start:.0f} s", flush=True)
            torch.save(model.state_dict(), file)


def load_dense(file: Path) -> nn.Module:
    model = build()
    model.load_state_dict(torch.load(file, weights_only=True))
    return model


class Trial:
    """One way to compress the trained network: steps with a plan, the rest after `harden`."""

    def __init__(self, images: Images, file: Path, steps: int, search: float, lr: float) -> None:
        self.images, self.file, self.steps, self.search, self.lr = images, file, steps, search, lr

    def run(self, *methods: Method, seed: int, budget: int | None = None) -> tuple[nn.Module, dict[str, float]]:
        torch.manual_seed(seed)
        model, teacher = load_dense(self.file).train(), load_dense(self.file).eval()
        length = max(1, round(self.search * self.steps))
        plan = pt.compress(model, *methods, steps=length, budget=budget, seed=seed)
        optimizer = torch.optim.SGD(plan.param_groups(weight_decay=1e-4), self.lr, momentum=0.9, nesterov=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: _cosine(i, self.steps))
        told: dict[str, float] = {}
        for step, (x, _) in zip(range(1, self.steps + 1), self.images.batches(seed + 1, 16), strict=False):
            with torch.no_grad():
                wanted = F.log_softmax(teacher(x), 1)
            F.kl_div(F.log_softmax(model(x), 1), wanted, log_target=True, reduction="batchmean").backward()
            optimizer.step()
            if not plan.is_hard:
                plan.step()
            optimizer.zero_grad()
            schedule.step()
            if step == length:
                told["soft"] = self.images.accuracy(model, "validation")
                plan.harden(optimizer)
                told["hard"] = self.images.accuracy(model, "validation")
        return plan.finalize(), told


def _cosine(step: int, steps: int) -> float:
    return min(1.0, (step + 1) / 20) * 0.5 * (1.0 + math.cos(math.pi * step / steps))


def zeros(target: float) -> dict[str, tuple[Method, float]]:
    """Each method with the share of its steps that search; magnitude pruning decides at its first step."""
    return {
        "continuous": (pt.ContinuousSparsification(target=target), 0.7),
        "gradual": (GradualMagnitude(target=target, every=5), 0.7),
        "st3": (ST3(target=target), 0.7),
        "magnitude": (MagnitudePruning(target=target), 0.0),
    }


@torch.no_grad()
def round_naively(model: nn.Module, bits: int) -> None:
    """Max-abs rounding per output channel, symmetric: the plain way."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            flat = module.weight.flatten(1)
            step = flat.abs().amax(1, keepdim=True).clamp_min(1e-12) / (2 ** (bits - 1) - 1)
            module.weight.copy_((flat / step).round().mul(step).view_as(module.weight))


def estimate_norms(model: nn.Module, images: Images) -> None:
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
    model.train()
    with torch.no_grad():
        for _, (x, _) in zip(range(16), images.batches(99, 128), strict=False):
            model(x)
    model.eval()


def compare_zeros(images: Images, options: argparse.Namespace) -> list[dict[str, Any]]:
    found = []
    for name, (method, search) in zeros(options.target).items():
        for lr in options.rates:
            for seed in options.seeds:
                trial = Trial(images, options.network, options.steps, search, lr)
                model, told = trial.run(method, seed=seed)
                found.append(_row(model, images, options, what="zeros", method=name, lr=lr, seed=seed, **told))
    return found


def compare_rounding(images: Images, options: argparse.Namespace) -> list[dict[str, Any]]:
    found = []
    for bits in (8, 4, 3):
        for name in ("smol", "max-abs"):
            model = load_dense(options.network)
            if name == "smol":
                method = pt.SMOL(target_bits=float(bits), init_bits=float(max(bits, 8)), group="channel")
                plan = pt.compress(model, method, steps=1)
                plan.harden(recalibrate=(x for _, (x, _) in zip(range(16), images.batches(99, 128), strict=False)))
                model = plan.finalize()
            else:
                round_naively(model, bits)
                estimate_norms(model, images)
            found.append(_row(model, images, options, what="rounding", method=name, bits=bits))
    return found


def compare_budgets(images: Images, options: argparse.Namespace) -> list[dict[str, Any]]:
    budget = 4 * sum(p.numel() for p in load_dense(options.network).parameters()) // 10
    both = (pt.ContinuousSparsification(), pt.SMOL(group="channel"))
    found = []
    for name, methods in {"both": both, "smol": both[1:]}.items():
        for lr in options.rates:
            for seed in options.seeds:
                trial = Trial(images, options.network, options.steps, 0.5, lr)
                model, told = trial.run(*methods, seed=seed, budget=budget)
                found.append(_row(model, images, options, what="budget", method=name, lr=lr, seed=seed, **told))
    return found


def _row(model: nn.Module, images: Images, options: argparse.Namespace, **labels: Any) -> dict[str, Any]:
    scratch = options.network.with_suffix(f".{os.getpid()}.pare")
    pt.save(model, scratch)
    size = scratch.stat().st_size
    scratch.unlink()
    row = {**labels, "accuracy": images.accuracy(model, "validation"), "bytes": size}
    if options.test:
        row["test"] = images.accuracy(model, "test")
    print(json.dumps(row), flush=True)
    return row


PARTS: dict[str, Callable[[Images, argparse.Namespace], list[dict[str, Any]]]] = {
    "zeros": compare_zeros,
    "rounding": compare_rounding,
    "budget": compare_budgets,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("data"))
    parser.add_argument("--network", type=Path, default=Path("convnet.pt"))
    parser.add_argument("--only", default="zeros,rounding,budget", help="dense, or some of zeros, rounding, budget")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=350)
    parser.add_argument("--target", type=float, default=0.9)
    parser.add_argument("--rates", type=lambda text: [float(one) for one in text.split(",")], default=[0.02])
    parser.add_argument("--seeds", type=lambda text: [int(one) for one in text.split(",")], default=[0])
    parser.add_argument("--test", action="store_true", help="the test images too")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    images = Images(options.root)
    if options.only == "dense":
        train_dense(images, options.epochs, options.network)
        return
    rows = [_row(load_dense(options.network), images, options, what="dense", method="dense")]
    for part in options.only.split(","):
        rows += PARTS[part](images, options)
    if options.json:
        record = {
            "environment": environment(torch.device("cpu")),
            "steps": options.steps,
            "target": options.target,
            "rows": rows,
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
