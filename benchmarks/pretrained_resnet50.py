"""Claim: a pretrained ResNet-50 keeps its accuracy on Imagenette at 128 px in a twentieth to a two-hundredth of its bytes.

The ImageNet network (keys as in torchvision, the original layout; see `build`) gets the ten outputs of Imagenette's classes and is fine-tuned for 6 epochs. Then,
each from that network, with that network as the teacher (KL divergence), 12 epochs of search and 4 of tuning, SGD with Nesterov
momentum and one cosine, batches of 128:

    cs95 cs98  gmp95 gmp98  st95 st98      95 % and 98 % zeros: Continuous Sparsification, gradual magnitude pruning, ST-3
    smol lsq                               few bits: SMOL by channel in a file of 4.7 MB, LSQ with 2 bits by channel
    both1 both05 smol1 smol05              files of 1 MB and 500 kB: CS + SMOL, SMOL alone
    post8 post5                            8 MB and 5 MB without training: 1,000 unlabelled images
    shrink4 shrink1 shrink05               `pt.shrink` to 4 MB, 1 MB and 500 kB

700 training images are held out from everything: rates are chosen by them (`--rates best`), never by the test images, which are Imagenette's
val folder. All files have folded norms in bfloat16, ours and rivals'; the accuracy at the end is that of the file, read again.

On a machine with the originals, `prepare` packs them into pieces that travel; where it runs, `decode` unpacks them once:

    python benchmarks/pretrained_resnet50.py prepare --imagenette DIR --weights resnet50.safetensors --pieces carry
    python benchmarks/pretrained_resnet50.py decode --pieces carry --data DATA
    python benchmarks/pretrained_resnet50.py run --data DATA --output rows.jsonl --rows dense,cs95,gmp95,st95 --jobs 4
    python benchmarks/pretrained_resnet50.py run --data DATA --output rows.jsonl --rows cs95 --rates best --seeds 1,2
    python benchmarks/pretrained_resnet50.py run --smoke --output rows.jsonl
"""

import argparse
import io
import json
import lzma
import math
import os
import queue
import shlex
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import paretorch as pt
from paretorch.core.compress import compress as core_compress
from paretorch.core.method import Method
from paretorch.core.plan import Plan
from paretorch.methods.precision.rivals import LSQ
from paretorch.methods.sparsity.rivals import ST3, GradualMagnitude
from paretorch.support.text import parse_bytes
from paretorch.training.folder import environment
from paretorch.training.norms import fold_norms, meter_of
from paretorch.workflows.posttraining import post_train
from paretorch.workflows.shrink import shrink_network
from paretorch.zoo.networks.resnet import Bottleneck, ImageNetResNet

SIDE, CROP, CENTRE = 160, 128, 140  # pixels that are stored, that the network sees, and of which it sees a test image
OUTPUTS = (0, 217, 482, 491, 497, 566, 569, 571, 574, 701)  # of ImageNet, in the order of the sorted folders
MEAN = (103.939, 116.779, 123.68)  # of blue, green and red
HELD = 70  # images of each class that nothing trains on
EPOCH, BATCH = 74, 128
SEARCH, TUNE, DENSE = 12 * EPOCH, 4 * EPOCH, 6 * EPOCH
RATES = (0.007, 0.02, 0.06)
PIECE = 47_000_000  # bytes
WEIGHTS = "resnet50.weights"


# Pieces that travel


def pack_weights(file: Path) -> bytes:
    """The network with ten outputs in bfloat16: its upper bytes, which repeat, compressed, and its lower ones as they are."""
    from safetensors.torch import load_file

    state = load_file(file)
    for key in ("fc.weight", "fc.bias"):
        state[key] = state[key][list(OUTPUTS)]
    flat = torch.cat([value.float().flatten() for value in state.values()]).bfloat16().view(torch.uint8).view(-1, 2)
    low, high = (flat[:, i].contiguous().numpy().tobytes() for i in (0, 1))
    head = json.dumps({key: list(value.shape) for key, value in state.items()}).encode()
    packed = lzma.compress(high, preset=1)
    return b"".join([len(head).to_bytes(4, "little"), len(packed).to_bytes(4, "little"), head, packed, low])


def unpack_weights(data: bytes) -> dict[str, Tensor]:
    head, packed = (int.from_bytes(data[i : i + 4], "little") for i in (0, 4))
    shapes = json.loads(data[8 : 8 + head])
    high = torch.frombuffer(bytearray(lzma.decompress(data[8 + head : 8 + head + packed])), dtype=torch.uint8)
    low = torch.frombuffer(bytearray(data[8 + head + packed :]), dtype=torch.uint8)
    flat = torch.stack([low, high], 1).flatten().view(torch.bfloat16).float()
    sizes = [math.prod(shape) for shape in shapes.values()]
    parts = zip(shapes.items(), flat.split(sizes), strict=True)
    return {key: part.view(shape).clone() for (key, shape), part in parts}


def shrunk_jpeg(path: str) -> bytes:
    """The square in the middle of a photograph, at SIDE pixels."""
    from PIL import Image

    image = Image.open(path).convert("RGB")
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    small = image.crop((left, top, left + side, top + side)).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    out = io.BytesIO()
    small.save(out, "JPEG", quality=87, optimize=True)
    return out.getvalue()


def prepare(options: argparse.Namespace) -> None:
    options.pieces.mkdir(parents=True, exist_ok=True)
    weights = pack_weights(options.weights)
    (options.pieces / WEIGHTS).write_bytes(weights)
    entries = []
    for split in ("train", "val"):
        for label, folder in enumerate(sorted((options.imagenette / split).iterdir())):
            entries += [(split, label, str(path)) for path in sorted(folder.glob("*.JPEG"))]
    with ProcessPoolExecutor(options.workers) as pool:
        pictures = list(pool.map(shrunk_jpeg, [path for _, _, path in entries], chunksize=64))
    room, index, piece = PIECE - len(weights), 0, 0  # the first images travel with the weights
    while index < len(pictures):
        end, size = index, 0
        while end < len(pictures) and size + len(pictures[end]) + 32 < room:
            size, end = size + len(pictures[end]) + 32, end + 1
        head = json.dumps([[*entries[i][:2], len(pictures[i])] for i in range(index, end)]).encode()
        data = len(head).to_bytes(4, "little") + head + b"".join(pictures[index:end])
        (options.pieces / f"images-{piece}.bin").write_bytes(data)
        print(f"images-{piece}.bin: {end - index} images, {len(data):,} bytes", flush=True)
        index, piece, room = end, piece + 1, PIECE
    print(f"{WEIGHTS}: {len(weights):,} bytes; {piece} pieces of images")


def pixels_of(jpeg: bytes) -> bytes:
    from PIL import Image

    return Image.open(io.BytesIO(jpeg)).convert("RGB").tobytes()


def decode(options: argparse.Namespace) -> None:
    start = time.time()
    labels: dict[str, list[int]] = {"train": [], "val": []}
    jpegs: dict[str, list[bytes]] = {"train": [], "val": []}
    for file in sorted(options.pieces.glob("images-*.bin")):
        data = file.read_bytes()
        at = 4 + int.from_bytes(data[:4], "little")
        for split, label, size in json.loads(data[4:at]):
            labels[split].append(label)
            jpegs[split].append(data[at : at + size])
            at += size
    content: dict[str, Any] = {"weights": unpack_weights((options.pieces / WEIGHTS).read_bytes())}
    with ProcessPoolExecutor(options.workers) as pool:
        for split, own in jpegs.items():
            raw = bytearray(b"".join(pool.map(pixels_of, own, chunksize=64)))
            pixels = torch.frombuffer(raw, dtype=torch.uint8).view(-1, SIDE, SIDE, 3).permute(0, 3, 1, 2).contiguous()
            content[split] = (pixels, torch.tensor(labels[split]))
    options.data.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, options.data)
    counts = {split: len(own) for split, own in jpegs.items()}
    print(f"{options.data}: {counts} in {time.time() - start:.0f} s", flush=True)


# The network and its data


def build(weights: dict[str, Tensor] | None) -> nn.Module:
    """Stride on the first convolution of a stage, as the weights were trained."""
    model = ImageNetResNet(50, classes=len(OUTPUTS))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 1e-3
        if isinstance(module, Bottleneck) and module.conv2.stride == (2, 2):
            module.conv1.stride, module.conv2.stride = (2, 2), (1, 1)
    if weights is not None:
        missing = model.load_state_dict(weights, strict=False)
        others = [key for key in missing.missing_keys if not key.endswith("num_batches_tracked")]
        if others or missing.unexpected_keys:
            raise SystemExit(f"the weights do not fit: {others} {missing.unexpected_keys}")
    return model


def tiny() -> nn.Module:
    """For --smoke."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 4, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 32, 3, 4, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, len(OUTPUTS)),
    )  # fmt: skip


class Images:
    """Imagenette on the device; crops are made there."""

    def __init__(self, content: dict[str, Any], device: torch.device) -> None:
        pixels, labels = content["train"]
        generator = torch.Generator().manual_seed(0)
        order = torch.randperm(len(labels), generator=generator)
        sets = [order[labels[order] == label] for label in range(len(OUTPUTS))]
        held, rest = torch.cat([one[:HELD] for one in sets]), torch.cat([one[HELD:] for one in sets])
        val_pixels, val_labels = content["val"]
        self.parts = {
            "train": (pixels[rest].to(device), labels[rest].to(device)),
            "held": (pixels[held].to(device), labels[held].to(device)),
            "test": (val_pixels.to(device), val_labels.to(device)),
        }
        self.device = device
        self._mean = torch.tensor(MEAN, device=device).view(1, 3, 1, 1)

    def batches(self, seed: int, size: int = BATCH) -> Iterator[tuple[Tensor, Tensor]]:
        """Random parts of random images, mirrored or not, for ever."""
        generator = torch.Generator(self.device).manual_seed(seed)
        pixels, labels = self.parts["train"]
        while True:
            order = torch.randperm(len(labels), generator=generator, device=self.device)
            for rows in order[: len(order) // size * size].split(size):
                random = torch.rand(5, size, generator=generator, device=self.device)
                area, ratio = 0.35 + 0.65 * random[0], ((2.0 * random[1] - 1.0) * math.log(4 / 3)).exp()
                height, width = ((area / ratio).sqrt().clamp_max(1.0), (area * ratio).sqrt().clamp_max(1.0))
                down, right = (2.0 * random[2] - 1.0) * (1.0 - height), (2.0 * random[3] - 1.0) * (1.0 - width)
                mirror = torch.where(random[4] < 0.5, -1.0, 1.0)
                yield self._cut(pixels[rows], height, width * mirror, down, right), labels[rows]

    def _cut(self, pixels: Tensor, height: Tensor, width: Tensor, down: Tensor, right: Tensor) -> Tensor:
        zero = torch.zeros_like(height)
        theta = torch.stack([torch.stack([width, zero, right], 1), torch.stack([zero, height, down], 1)], 1)
        grid = F.affine_grid(theta, [len(pixels), 3, CROP, CROP], align_corners=False)
        cut = F.grid_sample(pixels.float(), grid, padding_mode="border", align_corners=False)
        return (cut.flip(1) - self._mean).contiguous(memory_format=torch.channels_last)

    def centres(self, pixels: Tensor) -> Tensor:
        share = torch.full((len(pixels),), CENTRE / SIDE, device=self.device)
        return self._cut(pixels, share, share, torch.zeros_like(share), torch.zeros_like(share))

    def calibration(self, count: int, size: int, seed: int) -> list[Tensor]:
        pixels, labels = self.parts["train"]
        rows = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))[:count]
        return [self.centres(pixels[part.to(self.device)]) for part in rows.split(size)]

    @torch.no_grad()
    def measure(self, model: nn.Module, part: str) -> tuple[float, float]:
        """Accuracy in percent and cross entropy."""
        was, (pixels, labels) = model.training, self.parts[part]
        model.eval()
        with cast(self.device):
            logits = torch.cat([model(self.centres(some)).float() for some in pixels.split(500)])
        model.train(was)
        return 100.0 * float((logits.argmax(1) == labels).double().mean()), float(F.cross_entropy(logits, labels))


def cast(device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


class Teacher:
    """The log probabilities of the dense network; on a GPU by one captured graph."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._model, self._device = model.eval().requires_grad_(False), device
        self._graph: torch.cuda.CUDAGraph | None = None
        self._x = self._y = torch.empty(0)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        if self._device.type != "cuda":
            return self._forward(x)
        if self._graph is None:
            self._x = x.clone(memory_format=torch.channels_last)
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(3):
                    self._forward(self._x)
            torch.cuda.current_stream().wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._y = self._forward(self._x)
        self._x.copy_(x)
        self._graph.replay()
        return self._y

    def _forward(self, x: Tensor) -> Tensor:
        with torch.autocast(
            self._device.type, torch.bfloat16, enabled=self._device.type == "cuda", cache_enabled=False
        ):
            return F.log_softmax(self._model(x).float(), 1)


# Rows


@dataclass(frozen=True)
class Bench:
    """What a process has in memory."""

    images: Images
    dense: Callable[[], nn.Module]
    teacher: Teacher
    search: int
    tune: int
    shrink: int
    share: float  # of the budgets of ResNet-50, in a smoke test

    def budget(self, text: str) -> int:
        return int(parse_bytes(text) * self.share)


def train(
    bench: Bench, methods: tuple[Method, ...], rate: float, seed: int, budget: int | None
) -> tuple[nn.Module, dict[str, Any]]:
    """Search, round, tune."""
    torch.manual_seed(seed)
    model = bench.dense().train()
    meter = meter_of(model, "bf16")
    plan: Plan = core_compress(model, *methods, steps=bench.search, budget=budget, seed=seed, meter=meter)
    optimizer = torch.optim.SGD(plan.param_groups(weight_decay=1e-4), rate, momentum=0.9, nesterov=True)
    total, told = bench.search + bench.tune, {}
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: cosine(i, total))
    for step, (x, _) in zip(range(1, total + 1), bench.images.batches(seed + 1), strict=False):
        wanted = bench.teacher(x)
        with cast(bench.images.device):
            logits = model(x)
        loss = F.kl_div(F.log_softmax(logits.float(), 1), wanted, log_target=True, reduction="batchmean")
        loss.backward()
        optimizer.step()
        if not plan.is_hard:
            plan.step()
        optimizer.zero_grad()
        schedule.step()
        if step == bench.search:
            told["before"], told["before_held"] = (bench.images.measure(model, one)[0] for one in ("test", "held"))
            told["searched"] = {name: round(value, 5) for name, value in plan.metrics().items()}
            parts = zip(range(16), bench.images.batches(seed + 99), strict=False)
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always")
                plan.harden(optimizer, recalibrate=(x for _, (x, _) in parts))
            told["warnings"] = [str(one.message) for one in heard]
            told["after"], told["after_held"] = (bench.images.measure(model, one)[0] for one in ("test", "held"))
        if step % 100 == 0:
            print(f"    {os.getpid()} step {step} of {total}, loss {float(loss):.4f}", flush=True)
    return plan.finalize(), told


def cosine(step: int, steps: int) -> float:
    return min(1.0, (step + 1) / 20) * 0.5 * (1.0 + math.cos(math.pi * step / steps))


def train_dense(images: Images, model: nn.Module, steps: int) -> nn.Module:
    torch.manual_seed(0)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, nesterov=True, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: cosine(i, steps))
    for _, (x, y) in zip(range(steps), images.batches(1), strict=False):
        with cast(images.device):
            logits = model(x)
        F.cross_entropy(logits.float(), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return model.eval()


@dataclass(frozen=True)
class Trained:
    """A row that trains with these methods; `budget` in words."""

    methods: tuple[Method, ...]
    budget: str | None = None

    def __call__(self, bench: Bench, rate: float, seed: int) -> tuple[nn.Module, dict[str, Any]]:
        budget = None if self.budget is None else bench.budget(self.budget)
        model, told = train(bench, self.methods, rate, seed, budget)
        fold_norms(model, "bf16")
        return model, told


@dataclass(frozen=True)
class Rounded:
    """Post-training on 1,000 unlabelled images."""

    budget: str

    def __call__(self, bench: Bench, rate: float, seed: int) -> tuple[nn.Module, dict[str, Any]]:
        batches = bench.images.calibration(1000, 50, seed)
        found = post_train(bench.dense().eval(), batches, budget=bench.budget(self.budget))
        return found.model, {"price": found.price}


@dataclass(frozen=True)
class Shrunk:
    """`pt.shrink`, on unlabelled crops."""

    budget: str

    def __call__(self, bench: Bench, rate: float, seed: int) -> tuple[nn.Module, dict[str, Any]]:
        batches = (x for x, _ in bench.images.batches(seed + 1, 64))
        found = shrink_network(
            bench.dense().eval(), batches, budget=bench.budget(self.budget), steps=bench.shrink, progress="quiet"
        )
        return found.model, {"shrink": found.record}


SMOL = pt.SMOL(group="channel")
ROWS: dict[str, Callable[[Bench, float, int], tuple[nn.Module, dict[str, Any]]]] = {
    "cs95": Trained((pt.ContinuousSparsification(target=0.95),)),
    "gmp95": Trained((GradualMagnitude(target=0.95, every=10),)),
    "st95": Trained((ST3(target=0.95),)),
    "cs98": Trained((pt.ContinuousSparsification(target=0.98),)),
    "gmp98": Trained((GradualMagnitude(target=0.98, every=10),)),
    "st98": Trained((ST3(target=0.98),)),
    "smol": Trained((SMOL,), "4.7 MB"),
    "lsq": Trained((LSQ(bits=2, group="channel"),)),
    "both1": Trained((pt.ContinuousSparsification(), SMOL), "1 MB"),
    "both05": Trained((pt.ContinuousSparsification(), SMOL), "500 kB"),
    "smol1": Trained((SMOL,), "1 MB"),
    "smol05": Trained((SMOL,), "500 kB"),
    "post8": Rounded("8 MB"),
    "post5": Rounded("5 MB"),
    "shrink4": Shrunk("4 MB"),
    "shrink1": Shrunk("1 MB"),
    "shrink05": Shrunk("500 kB"),
}


def has_rate(name: str) -> bool:
    return isinstance(ROWS[name], Trained)


# Running


def start(options: argparse.Namespace) -> Bench:
    """Everything that rows have in common; the dense network is trained if there is none."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.set_num_threads(options.threads)
    content = smoke_data() if options.smoke else torch.load(options.data, mmap=True, weights_only=True)
    images = Images(content, device)
    file = options.data.with_name("dense.pt")
    fresh: Callable[[], nn.Module] = tiny if options.smoke else (lambda: build(None))

    def place(model: nn.Module) -> nn.Module:
        return model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]

    if not file.exists():
        begin = time.time()
        model = place(fresh() if options.smoke else build(content["weights"]))
        before = images.measure(model, "test")[0]
        model = train_dense(images, model, 3 if options.smoke else DENSE)
        row = {
            "row": "dense", "start": before, "end": images.measure(model, "test")[0],
            "held": images.measure(model, "held")[0], "seconds": round(time.time() - begin, 1),
        }  # fmt: skip
        keep(options, {**row, "bytes": 4 * sum(p.numel() for p in model.parameters())})
        state = {key: value.cpu() for key, value in model.state_dict().items()}
        torch.save(state, file.with_suffix(f".{os.getpid()}"))
        file.with_suffix(f".{os.getpid()}").replace(file)
    state = torch.load(file, weights_only=True)

    def dense() -> nn.Module:
        model = fresh()
        model.load_state_dict(state)
        return place(model)

    steps = (10, 5, 10) if options.smoke else (SEARCH, TUNE, options.shrink_steps)
    return Bench(images, dense, Teacher(dense(), device), *steps, share=0.004 if options.smoke else 1.0)


def smoke_data() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)

    def part(count: int) -> tuple[Tensor, Tensor]:
        labels = torch.arange(count) % len(OUTPUTS)
        noise = torch.randint(0, 90, (count, 3, SIDE, SIDE), generator=generator)
        return (noise + 16 * labels.view(-1, 1, 1, 1)).to(torch.uint8), labels

    return {"train": part(HELD * 10 + 260), "val": part(60)}


def run_row(bench: Bench, name: str, rate: float, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    begin = time.time()
    model, told = ROWS[name](bench, rate, seed)
    seconds = time.time() - begin
    small = model.to("cpu").to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pare"
        pt.save(small, path)
        size = path.stat().st_size
        read = pt.load(path, into=bench.dense().cpu()).to(bench.images.device)
    read = read.to(memory_format=torch.channels_last)
    (end, _), (held, held_loss) = (bench.images.measure(read, part) for part in ("test", "held"))
    weights = [p for p in read.parameters() if p.dim() > 1]
    zeros = sum(int((p == 0).sum()) for p in weights) / sum(p.numel() for p in weights)
    row = {
        "row": name, "rate": rate if has_rate(name) else None, "seed": seed, **told, "end": end, "held": held,
        "held_loss": held_loss, "bytes": size, "zeros": round(zeros, 5), "seconds": round(seconds, 1),
        "all_seconds": round(time.time() - begin, 1), "jobs": options.jobs,
    }  # fmt: skip
    keep(options, row)
    return row


def keep(options: argparse.Namespace, row: dict[str, Any]) -> None:
    """Append one line, at once."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    told = {**environment(device), "command": f"python {shlex.join(options.command)}"}
    line = json.dumps({**row, "smoke": options.smoke, "environment": told}) + "\n"
    with open(options.output, "ab", buffering=0) as file:
        file.write(line.encode())
    print(line[: line.find(', "smoke"')], flush=True)


def read_rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    files = [file for file in (*options.earlier, options.output) if file.exists()]
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def best_rate(rows: list[dict[str, Any]], name: str) -> float:
    """By the held-out images, of the first seed: their accuracy, and their loss if that is equal."""
    own = [row for row in rows if row["row"] == name]
    if not own:
        raise SystemExit(f"--rates best: no rows of {name} yet; run it with several rates, or name them by --earlier")
    first = min(row["seed"] for row in own)
    return float(max((r for r in own if r["seed"] == first), key=lambda r: (r["held"], -r["held_loss"]))["rate"])


def jobs_of(options: argparse.Namespace) -> list[tuple[str, float, int]]:
    """What is to be done, without what the files have already; first seeds first, as the rows are named."""
    rows = read_rows(options)
    done = {(row["row"], row.get("rate"), row.get("seed")) for row in rows}
    found = []
    for seed in options.seeds:
        for name in options.rows:
            if name == "dense":
                continue
            rates = (0.0,) if not has_rate(name) else options.rates or (best_rate(rows, name),)
            found += [
                (name, rate, seed) for rate in rates if (name, rate if has_rate(name) else None, seed) not in done
            ]
    return found


def work(options: argparse.Namespace, jobs: Any, begin: float) -> None:
    warnings.simplefilter("ignore")
    bench = start(options)
    while time.time() - begin < options.deadline:
        try:
            job = jobs.get(timeout=1)
        except queue.Empty:
            return
        print(f"  {os.getpid()} begins {job} at {time.time() - begin:.0f} s", flush=True)
        try:
            run_row(bench, *job, options)
        except Exception:
            print(f"FAILED {job}\n{traceback.format_exc()}", flush=True)


def run(options: argparse.Namespace) -> None:
    begin = time.time()
    if unknown := set(options.rows) - {*ROWS, "dense"}:
        raise SystemExit(f"no such rows: {', '.join(sorted(unknown))}; there are dense, {', '.join(ROWS)}")
    if options.smoke:
        options.data = Path(tempfile.mkdtemp()) / "data.pt"
    context = torch.multiprocessing.get_context("spawn")
    if not options.data.with_name("dense.pt").exists():
        first = context.Process(target=start, args=(options,))
        first.start()
        first.join()
        if first.exitcode:
            raise SystemExit("the dense network could not be trained")
    found = jobs_of(options)
    print(f"{len(found)} jobs in {options.jobs} processes: {found}", flush=True)
    jobs = context.Queue()
    for job in found:
        jobs.put(job)
    workers = [context.Process(target=work, args=(options, jobs, begin)) for _ in range(min(options.jobs, len(found)))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    jobs.cancel_join_thread()
    for row in read_rows(options):
        told = {
            key: row.get(key) for key in ("row", "rate", "seed", "before", "after", "held", "end", "bytes", "seconds")
        }
        print(json.dumps(told))
    print(f"all in {time.time() - begin:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("prepare", "decode", "run"))
    parser.add_argument("--imagenette", type=Path, help="folder with train and val")
    parser.add_argument("--weights", type=Path, help="resnet50.safetensors")
    parser.add_argument("--pieces", type=Path, default=Path("carry"))
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes that read images")
    parser.add_argument("--data", type=Path, default=Path("data.pt"), help="the decoded file; dense.pt lies beside it")
    parser.add_argument("--output", type=Path, help="rows, one JSON line each")
    parser.add_argument("--earlier", type=Path, nargs="*", default=[], help="rows of earlier runs, not to be repeated")
    parser.add_argument("--rows", type=lambda text: text.split(","), default=[*ROWS])
    parser.add_argument("--rates", default=",".join(map(str, RATES)), help="numbers, or best")
    parser.add_argument("--seeds", type=lambda text: [int(one) for one in text.split(",")], default=[0])
    parser.add_argument("--jobs", type=int, default=1, help="processes on the one device")
    parser.add_argument("--threads", type=int, default=2, help="of each process")
    parser.add_argument("--deadline", type=float, default=math.inf, help="seconds after which no row begins")
    parser.add_argument("--shrink-steps", type=int, default=1000)
    parser.add_argument("--smoke", action="store_true", help="a tiny network, noise for images, a few steps")
    options = parser.parse_args()
    options.command = sys.argv
    options.rates = None if options.rates == "best" else [float(one) for one in options.rates.split(",")]
    {"prepare": prepare, "decode": decode, "run": run}[options.what](options)


if __name__ == "__main__":
    main()
