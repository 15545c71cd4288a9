"""Aim: the best learning rate of AvaGrad is the same for every ε, that of Adam moves with ε (thesis section 6.4.2).

Trains a small residual network on CIFAR-10 with every (α, ε) of the thesis' 21 x 21 grid, many settings AT ONCE on
one GPU: parameters are one matrix with a row per setting, layers are batched matrix products, the optimizer's
arithmetic works on rows, and AvaGrad has one norm per row. All settings begin alike and see the same batches. What is
reported is the error on 5,000 training images that are held out; the test set is not touched.

    python benchmarks/optimizer_grid.py --root data --json results/optimizers-grid/raw.json      # one H200, some minutes
    python benchmarks/optimizer_replay.py results/optimizers-grid/raw.json                       # any CPU, afterwards

The first command needs torch, numpy and this package alone. It says after 20 steps how long it will take; an optimizer
that is in the file already is not trained again, so that a run can be stopped between the two.

Reduced budget: 73 k parameters (six 3x3 convolutions of 16, 16, 32, 32, 64, 64 channels with batch norm, the first at
half resolution) in place of WRN-28-4, a few epochs in place of 200. As in the thesis: α divided by 5 after 30, 60 and
80 % of the steps, batch 128, weight decay 5e-4, β = (0.9, 0.999), crops and flips. Adam is torch's (with bias correction).
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from paretorch import zoo
from paretorch.training.folder import environment
from paretorch.training.tasks.images import ImageClassification
from paretorch.workflows.tuning import alpha_grid, eps_grid
from paretorch.zoo.data import Augment, Images
from paretorch.zoo.data.images import normalise

BETA1, BETA2 = 0.9, 0.999
Stats = list[tuple[Tensor, Tensor]]


class Patches(torch.autograd.Function):
    """[..., H, W, C] to the 3x3 neighbourhoods [..., h, w, 9C] of every (or every second) place, zeros around."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, stride: int) -> Tensor:
        ctx.stride, ctx.shape = stride, x.shape
        around = F.pad(x, (0, 0, 1, 1, 1, 1)).unfold(-3, 3, stride).unfold(-3, 3, stride)
        return around.movedim(-3, -1).flatten(-3)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        *outer, height, width, channels = ctx.shape
        h, w = grad.shape[-3:-1]
        parts = grad.reshape(*outer, h, w, 9, channels)
        padded = grad.new_zeros(*outer, height + 2, width + 2, channels)
        for place in range(9):
            rows = slice(place // 3, place // 3 + ctx.stride * (h - 1) + 1, ctx.stride)
            columns = slice(place % 3, place % 3 + ctx.stride * (w - 1) + 1, ctx.stride)
            padded[..., rows, columns, :] += parts[..., place, :]
        return padded[..., 1:-1, 1:-1, :], None


def finish(
    out: Tensor, affine: Tensor, before: Tensor | None, mean: Tensor | None = None, variance: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch norm, the shortcut and ReLU of [settings, batch, h, w, channels]; gives the statistics used as well."""
    values = out.float()
    if mean is None or variance is None:
        mean, variance = values.mean((1, 2, 3)), values.var((1, 2, 3), correction=0)
    scale = affine[:, 0] * (variance + 1e-5).rsqrt()
    shift = affine[:, 1] - mean * scale
    values = values * scale[:, None, None, None] + shift[:, None, None, None]
    values = values if before is None else before + values
    return values.relu().to(out.dtype), mean, variance


class Networks:
    """As many copies of one small network as there are settings; `flat` [settings, parameters] holds all weights."""

    def __init__(
        self,
        channels: int,
        classes: int,
        width: int = 16,
        dtype: torch.dtype = torch.float32,
        compile: bool = False,
    ) -> None:
        self.widths = [width, width, 2 * width, 2 * width, 4 * width, 4 * width]
        self.strides = [2, 1, 2, 1, 2, 1]
        self.dtype = dtype
        # What surrounds the matrix products is bound by memory: compiled, it is one pass in place of ten.
        self._finish: Any = torch.compile(finish, dynamic=False) if compile else finish
        sources = [channels, *self.widths[:-1]]
        self.shapes: list[tuple[int, ...]] = [(9 * a, b) for a, b in zip(sources, self.widths, strict=True)]
        self.shapes += [(2, b) for b in self.widths] + [(self.widths[-1], classes), (1, classes)]
        self.sizes = [math.prod(shape) for shape in self.shapes]

    def start(self, seed: int) -> Tensor:
        """One row: He's initialisation, unit scales, zero biases."""
        generator = torch.Generator().manual_seed(seed)
        parts = []
        for i, shape in enumerate(self.shapes):
            if i < 6 or i == 12:
                gain = 2.0 if i < 6 else 1.0
                parts.append(torch.randn(shape, generator=generator) * math.sqrt(gain / shape[0]))
            else:
                parts.append(
                    torch.stack((torch.ones(shape[1]), torch.zeros(shape[1]))) if i < 12 else torch.zeros(shape)
                )
        return torch.cat([part.flatten() for part in parts])

    def logits(self, flat: Tensor, images: Tensor, known: Stats | None = None) -> tuple[Tensor, Stats]:
        """[settings, batch, classes] for images [batch, H, W, C] and the statistics of each batch norm.

        `known` are the statistics to use in place of the batch's own.
        """
        rows = len(flat)
        parts = [part.view(rows, *shape) for part, shape in zip(flat.split(self.sizes, 1), self.shapes, strict=True)]
        x = images.to(self.dtype).unsqueeze(0)
        stats: Stats = []
        for i in range(6):
            patches = Patches.apply(x, self.strides[i])
            *_, h, w, _ = patches.shape
            # The images are the same for every setting: their patches are made once.
            patches = patches.flatten(1, 3).expand(rows, -1, -1)
            out = torch.bmm(patches, parts[i].to(self.dtype)).view(rows, -1, h, w, self.widths[i])
            before = x if self.strides[i] == 1 else None
            if known is None:
                x, *found = self._finish(out, parts[6 + i], before)
            else:
                x, *found = finish(out, parts[6 + i], before, *known[i])
            stats.append((found[0].detach(), found[1].detach()))
        return torch.baddbmm(parts[13], x.float().mean((2, 3)), parts[12]), stats


class Adam:
    """torch.optim.Adam on the rows of a matrix, each with its own α and ε."""

    def __init__(self, flat: Tensor, eps: Tensor, weight_decay: float) -> None:
        self.m, self.v = torch.zeros_like(flat), torch.zeros_like(flat)
        self.eps, self.decay, self.t = eps.unsqueeze(1), weight_decay, 0

    def step(self, flat: Tensor, g: Tensor, lr: Tensor) -> None:
        self.t += 1
        old = self.v
        g = g.add(flat, alpha=self.decay)
        self.m.lerp_(g, 1 - BETA1)
        self.v = (BETA2 * old).addcmul_(g, g, value=1 - BETA2)
        flat.sub_(self._rate(lr, old).unsqueeze(1) * self.m / self._root(old).add_(self.eps))

    def _rate(self, lr: Tensor, old: Tensor) -> Tensor:
        return lr / (1 - BETA1**self.t)

    def _root(self, old: Tensor) -> Tensor:
        return self.v.sqrt() / math.sqrt(1 - BETA2**self.t)


class AvaGrad(Adam):
    """paretorch.AvaGrad on the rows of a matrix: a norm for each row, which is a network of its own."""

    def _rate(self, lr: Tensor, old: Tensor) -> Tensor:
        source = torch.where((old > 0).any(1, keepdim=True), old, self.v)
        live = source > 0
        squares = torch.where(live, 1 / (source.sqrt() + self.eps), 0.0).square()
        mean = squares.sum(1, dtype=torch.float64) / live.sum(1)
        return (lr / mean.sqrt()).to(lr.dtype)

    def _root(self, old: Tensor) -> Tensor:
        return torch.where(old > 0, old, self.v).sqrt()


def schedule(step: int, steps: int) -> float:
    """The factor of α: a fifth after 30, 60 and 80 % of the steps."""
    return 0.2 ** sum(step >= part * steps for part in (0.3, 0.6, 0.8))


def train(
    images: Images, kind: type[Adam], settings: list[tuple[float, float]], args: argparse.Namespace
) -> tuple[Tensor, Tensor]:
    """Validation error in per cent (not finite where the weights are not) and training loss of the last epoch."""
    device = torch.device(args.device)
    task = ImageClassification(images, batch=args.batch, how=_augment(images), seed=args.seed, device=device)
    networks = Networks(images.train[0].shape[1], images.classes, args.width, _precision(device), args.compile)
    flat = networks.start(args.seed).to(device).repeat(len(settings), 1).requires_grad_()
    alphas, epsilons = torch.tensor(settings, device=device).T
    rule = kind(flat.detach(), epsilons, args.weight_decay)
    running: Stats = []
    losses = torch.zeros(len(settings), device=device)
    steps, begun = args.epochs * task.steps, time.perf_counter()
    for step in range(steps):
        epoch, index = divmod(step, task.steps)
        if index == 0:
            batches, labels = task.epoch(epoch)
            losses = torch.zeros_like(losses)
        logits, stats = networks.logits(flat, _pixels(images, batches[index]))
        loss = _losses(logits, labels[index])
        (grad,) = torch.autograd.grad(loss.sum(), flat)
        with torch.no_grad():
            rule.step(flat, grad, alphas * schedule(step, steps))
            running = [
                (m.lerp(new[0], 0.1), v.lerp(new[1], 0.1)) for (m, v), new in zip(running or stats, stats, strict=True)
            ]
            losses += loss.detach() / task.steps
        if step in (4, 20):
            begun = _tell_time(begun, step, steps, device)
    error = evaluate(networks, flat.detach(), running, images)
    return torch.where(flat.detach().isfinite().all(1), error, torch.nan).cpu(), losses.cpu()


@torch.no_grad()
def evaluate(networks: Networks, flat: Tensor, running: Stats, images: Images) -> Tensor:
    """The error of every setting on the held-out images, in per cent."""
    pixels, labels = (part.to(flat.device) for part in images.test)
    wrong = torch.zeros(len(flat), device=flat.device)
    for part, label in zip(pixels.split(250), labels.split(250), strict=True):
        logits, _ = networks.logits(flat, _pixels(images, part), running)
        wrong += (logits.argmax(2) != label).sum(1)
    return 100 * wrong / len(labels)


def _pixels(images: Images, batch: Tensor) -> Tensor:
    return normalise(batch, images.mean, images.std, torch.float32).movedim(1, 3)


def _losses(logits: Tensor, labels: Tensor) -> Tensor:
    rows, batch, _ = logits.shape
    each = F.cross_entropy(logits.flatten(0, 1), labels.repeat(rows), reduction="none")
    return each.view(rows, batch).mean(1)


def _augment(images: Images) -> Augment:
    return Augment(1, False) if images.name == "digits" else Augment()


def _precision(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def _tell_time(begun: float, step: int, steps: int, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    now = time.perf_counter()
    if step == 20:
        print(
            f"  {1e3 * (now - begun) / 16:.1f} ms a step, about {(now - begun) / 16 * steps:.0f} s for these settings",
            flush=True,
        )
    return now


def grid(images: Images, kind: type[Adam], args: argparse.Namespace) -> dict[str, Any]:
    """The whole table of one optimizer, in as many parts as memory asks for."""
    alphas, epsilons = alpha_grid()[:: args.every], eps_grid()[:: args.every]
    settings = [(alpha, eps) for alpha in alphas for eps in epsilons]
    begun = time.perf_counter()
    parts = range(0, len(settings), args.at_once)
    found = [train(images, kind, settings[i : i + args.at_once], args) for i in parts]
    errors, losses = (torch.cat(columns).view(len(alphas), -1) for columns in zip(*found, strict=True))
    return {
        "alphas": alphas,
        "epsilons": epsilons,
        "error": _table(errors),
        "loss": _table(losses),
        "seconds": time.perf_counter() - begun,
    }


def _table(values: Tensor) -> list[list[float | None]]:
    return [[round(value, 6) if math.isfinite(value) else None for value in row] for row in values.tolist()]


def main() -> None:
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default=default)
    parser.add_argument(
        "--data", default="cifar10" if default == "cuda" else "digits", help="cifar10, or digits to try"
    )
    parser.add_argument("--root", help="folder of the data sets")
    parser.add_argument("--optimizers", nargs="+", choices=("Adam", "AvaGrad"), default=["AvaGrad", "Adam"])
    parser.add_argument("--epochs", type=int, default=5 if default == "cuda" else 1)
    parser.add_argument("--every", type=int, default=1 if default == "cuda" else 5, help="take every n-th α and ε")
    parser.add_argument("--at-once", type=int, default=147, help="settings trained at once: a third of the grid")
    parser.add_argument("--validation", type=int, help="images held out (5,000, or a fifth of a small set)")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--weight-decay", type=float, default=5e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=default == "cuda")
    parser.add_argument("--json", type=Path, help="write (and continue) this file")
    args = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    images = zoo.data.load(args.data, args.root)
    images = images.validation(args.validation or min(5000, len(images.train[1]) // 5), seed=0)
    recipe = {key: value for key, value in vars(args).items() if key not in ("json", "root", "optimizers", "at_once")}
    recipe["validation"] = len(images.test[1])
    content: dict[str, Any] = {"recipe": recipe, **environment(torch.device(args.device)), "grids": {}}
    if args.json and args.json.exists():
        before = json.loads(args.json.read_text())
        if before["recipe"] != recipe:
            raise SystemExit(f"{args.json} holds a grid of other options ({before['recipe']}): choose another --json.")
        content["grids"] = before["grids"]
    kinds: dict[str, type[Adam]] = {"Adam": Adam, "AvaGrad": AvaGrad}
    for name in args.optimizers:
        if name not in content["grids"]:
            print(f"{name} on {args.data}, {args.epochs} epochs, {environment(torch.device(args.device))['hardware']}")
            content["grids"][name] = grid(images, kinds[name], args)
        table = content["grids"][name]
        best = min((e, i, j) for i, row in enumerate(table["error"]) for j, e in enumerate(row) if e is not None)
        print(f"{name}: {best[0]:.2f} % at α = {table['alphas'][best[1]]:g}, ε = {table['epsilons'][best[2]]:g}, "
              f"{table['seconds']:.0f} s")  # fmt: skip
        if args.json:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.write_text(json.dumps(content) + "\n")


if __name__ == "__main__":
    main()
