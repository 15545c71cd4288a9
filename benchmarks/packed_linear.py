"""Aim: a Linear with packed weights is faster than a dense one, by about as much as it reads less memory.

On one H200, batch 1, weights 4096 × 11008 and 8192 × 28672 (outputs × inputs) that come from memory: at least 2.5 × faster
than bf16 at 4 bits, at least 4 × at 2 bits, and not slower than torch's own int4 product (`_weight_int4pack_mm`, one scale
for 128 weights). On a CPU: `W @ xᵀ` in compressed rows against dense torch and dense onnxruntime, at 90 to 99 % zeros.

    python benchmarks/packed_linear.py                     # the table of a GPU; on a machine without one, that of --cpu
    python benchmarks/packed_linear.py --cpu --threads 1   # compressed rows, and a small packed layer for its error alone
    python benchmarks/packed_linear.py --sweep             # which tiles, warps, stages and programs are best

On a GPU every candidate goes through so many copies of its weights that none stays in the cache, all launches replayed from
a CUDA graph. All candidates take turns, several rounds; the tables show medians over rounds, of ratios within a round.
Errors are the largest difference from the product with the dequantized fp32 weight, relative to the largest output.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import statistics
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paretorch.deploy.fast import PackedLinear, SparseLinear
from paretorch.deploy.fast._launch import Tuning
from paretorch.deploy.fast.codes import WIDTHS, WORD
from paretorch.deploy.fast.measure import elapsed
from paretorch.deploy.fast.packing import COLUMNS, ROWS, Packed
from paretorch.deploy.latency import timed_rounds
from paretorch.training.folder import environment

DEVICE = "cuda"
SHAPES = ["4096x11008", "11008x4096", "8192x28672", "28672x8192"]
BEYOND_CACHE = 400_000_000  # bytes of weights to go through before one is read again
GROUP = 128
Call = Callable[[], Tensor]
Setting = tuple[str, int, int, int, int]


def random_packed(shape: tuple[int, int], kind: str, tile: tuple[int, int], device: str) -> Packed:
    """Random codes. kind: a width; "mixed" (channels: a quarter each of 8 and 2 bits, half of 4); "blocks" (any)."""
    generator = torch.Generator().manual_seed(0)
    tiles, blocks = -(-shape[0] // tile[0]), -(-shape[1] // tile[1])
    if kind == "mixed":
        widths = torch.tensor([8, 4, 4, 2])[torch.arange(tiles) * 4 // tiles][:, None].expand(-1, blocks)
    elif kind == "blocks":
        widths = torch.tensor([8, 4, 4, 2])[torch.randint(4, (tiles, blocks), generator=generator)]
    else:
        widths = torch.full((tiles, blocks), int(kind))
    words, places, spans = [], [], []
    for width in WIDTHS:
        here = widths == width
        size = (int(here.sum()), tile[0], tile[1] * width // WORD)
        words.append(torch.randint(-(1 << 15), 1 << 15, size, dtype=torch.int16, device=device))
        places.append(here.nonzero()[:, 1].to(device, torch.int32))
        spans.append(torch.stack([here.sum(1).cumsum(0) - here.sum(1), here.sum(1).cumsum(0)], dim=1))
    exponents = torch.tensor([[1 - width] for width in WIDTHS], dtype=torch.int32).expand(-1, tiles * tile[0])
    rows = torch.arange(tiles * tile[0], dtype=torch.int32).clamp_max(shape[0])
    return Packed(
        shape,
        True,
        (words[0], words[1], words[2]),
        (places[0], places[1], places[2]),
        torch.stack(spans, dim=1).to(device, torch.int32),
        exponents.contiguous().to(device),
        rows.to(device),
    )


class Field:
    """The candidates for one shape and batch: calls by copy of the weights, bytes of a weight, error."""

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.calls: dict[str, list[Call]] = {}
        self.facts: dict[str, dict[str, Any]] = {}

    def add(self, name: str, calls: Callable[[int], list[Call]], size: int, weight: Tensor) -> None:
        copies = calls(max(2, -(-BEYOND_CACHE // size)))
        got, wanted = copies[0]().float(), self.x.float() @ weight.T
        error = float((got - wanted).abs().max() / wanted.abs().max())
        self.calls[name] = copies
        self.facts[name] = {"candidate": name, "bytes": size, "copies": len(copies), "error": error}

    def add_packed(self, name: str, packed: Packed, tuning: Tuning, weight: Tensor) -> None:
        layer = PackedLinear(packed)
        layer.tuning = tuning

        def calls(count: int) -> list[Call]:
            layers = [copy.deepcopy(layer) for _ in range(count)]
            return [lambda each=each: each(self.x) for each in layers]

        self.add(name, calls, packed.bytes, weight)

    def add_dense(self, weight: Tensor) -> None:
        half = weight.bfloat16()

        def calls(count: int) -> list[Call]:
            weights = [half.clone() for _ in range(count)]
            return [lambda w=w: F.linear(self.x, w) for w in weights]

        self.add("bf16", calls, 2 * weight.numel(), weight)

    def add_int4(self, weight: Tensor) -> None:
        """torch's own: (c − 8) · scale + zero, which holds the odd grid exactly."""
        codes = ((weight * 8 + 15) / 2).to(torch.uint8)
        packed = torch._convert_weight_to_int4pack((codes[:, ::2] << 4) | codes[:, 1::2], 8)
        scales = torch.tensor([0.25, 0.125], device=weight.device).bfloat16()
        scales = scales.expand(weight.shape[1] // GROUP, weight.shape[0], 2).contiguous()

        def calls(count: int) -> list[Call]:
            pairs = [(packed.clone(), scales.clone()) for _ in range(count)]
            return [lambda p=p, s=s: torch._weight_int4pack_mm(self.x, p, GROUP, s) for p, s in pairs]

        self.add("torch int4", calls, weight.numel() // 2 + 2 * scales.numel(), weight)

    def measure(self, rounds: int, milliseconds: float) -> list[dict[str, Any]]:
        """Rows with microseconds a call, one for each round."""
        graphs = {name: _graph(calls) for name, calls in self.calls.items()}
        times: dict[str, list[float]] = {name: [] for name in graphs}
        for _ in range(rounds):
            for name, (graph, launches) in graphs.items():
                once = elapsed(graph.replay, 1)
                repeats = max(1, round(milliseconds / max(once, 1e-3)))
                times[name].append(1e3 * elapsed(graph.replay, repeats) / launches)
        return [{**self.facts[name], "us": statistics.median(t), "times": t} for name, t in times.items()]


def _graph(calls: list[Call]) -> tuple[torch.cuda.CUDAGraph, int]:
    """All copies in turn, at least 20 launches."""
    launches = calls * -(-20 // len(calls))
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in launches:
            call()
    return graph, len(launches)


def copy_bandwidth() -> float:
    """Bytes per second, read and written, of a copy of 1 GiB."""
    source = torch.empty(1 << 28, device=DEVICE)
    target = torch.empty_like(source)
    elapsed(lambda: target.copy_(source), 3)
    return 8 * source.numel() / (1e-3 * min(elapsed(lambda: target.copy_(source), 10) for _ in range(5)))


def gpu_table(args: argparse.Namespace, bandwidth: float) -> list[dict[str, Any]]:
    rows = []
    for text, batch in itertools.product(args.shapes, args.batch):
        shape = _shape(text)
        torch.manual_seed(0)
        field = Field(torch.randn(batch, shape[1], device=DEVICE).bfloat16())
        tile = _shape(args.tiles[0])
        tuning = Tuning(args.programs[0], args.warps[0], args.stages[0], early=bool(args.early[0]))
        for kind in args.kinds:
            packed = random_packed(shape, kind, tile, DEVICE)
            weight = PackedLinear(packed).weight
            if kind == "4":
                field.add_dense(weight)
                field.add_int4(weight)
            field.add_packed(f"packed {kind}", packed, tuning, weight)
        found = field.measure(args.rounds, 5.0)
        rows += [{"shape": text, "batch": batch, **row, **_ratios(row, found)} for row in found]
        print(f"\n{text}, batch {batch}")
        print(f"{'':16}{'us':>9}{'x bf16':>9}{'x int4':>9}{'TB/s':>8}{'of copy':>9}{'error':>10}")
        for row in rows[-len(found) :]:
            speed = row["bytes"] / row["us"] * 1e-6
            print(
                f"{row['candidate']:16}{row['us']:>9.2f}{row['vs_bf16']:>9.2f}{row['vs_int4']:>9.2f}{speed:>8.2f}"
                f"{speed * 1e12 / bandwidth:>9.0%}{row['error']:>10.1e}"
            )
        del field
        torch.cuda.empty_cache()
    return rows


def _ratios(row: Mapping[str, Any], rows: list[dict[str, Any]]) -> dict[str, float]:
    """How many times faster, the median over rounds."""
    by_name = {other["candidate"]: other["times"] for other in rows}
    pairs = (("vs_bf16", "bf16"), ("vs_int4", "torch int4"))
    return {
        key: statistics.median(a / b for a, b in zip(by_name[name], row["times"], strict=True))
        if name in by_name
        else 0
        for key, name in pairs
    }


def sweep(args: argparse.Namespace) -> list[dict[str, Any]]:
    """All tiles and warps; for the best three of these all stages and programs; for the best three both ways to start."""
    names = ("tiles", "warps", "stages", "programs", "early")
    rows: list[dict[str, Any]] = []
    for text, kind, batch in itertools.product(args.shapes, args.kinds, args.batch):
        found: dict[Setting, dict[str, Any]] = {}
        middle = [values[len(values) // 2] for values in (args.tiles, args.warps, args.stages, args.programs)]
        starts = [(*middle, 0)]
        for varied in (names[:2], names[2:4], names[4:]):
            for start in starts:
                choices = [getattr(args, n) if n in varied else [v] for n, v in zip(names, start, strict=True)]
                for setting in itertools.product(*choices):
                    try_setting(found, setting, _shape(text), kind, batch)
            starts = sorted(found, key=lambda setting: found[setting]["us"])[:3]
        print(
            f"\n{text}, {kind} bits, batch {batch}: microseconds, error, tile, warps, stages, programs, early",
            flush=True,
        )
        for setting, row in sorted(found.items(), key=lambda item: item[1]["us"]):
            rows.append({"shape": text, "kind": kind, "batch": batch, "setting": setting, **row})
            if row["us"] <= 1.15 * min(other["us"] for other in found.values()):
                print(f"{row['us']:>9.2f}{row['error']:>10.1e}  {setting}", flush=True)
    return rows


def try_setting(
    found: dict[Setting, dict[str, Any]], setting: Setting, shape: tuple[int, int], kind: str, batch: int
) -> None:
    tile, warps, stages, programs, early = setting
    if setting in found:
        return
    torch.manual_seed(0)
    field = Field(torch.randn(batch, shape[1], device=DEVICE).bfloat16())
    packed = random_packed(shape, kind, _shape(tile), DEVICE)
    tuning = Tuning(programs, warps, stages, early=bool(early))
    try:
        field.add_packed("packed", packed, tuning, PackedLinear(packed).weight)
        (found[setting],) = field.measure(3, 3.0)
    except Exception as error:  # Triton has its own types for what does not fit into shared memory
        print(f"{shape} {kind} {batch} {setting}: {type(error).__name__}", flush=True)


def cpu_table(args: argparse.Namespace) -> list[dict[str, Any]]:
    torch.set_num_threads(args.threads)
    size, rows = args.size, []
    print(f"Linear {size} x {size}, {args.threads} thread(s): microseconds (lowest - highest round)")
    for batch, zeros in itertools.product(args.batch, (0.90, 0.95, 0.98, 0.99)):
        torch.manual_seed(0)
        layer, x = nn.Linear(size, size), torch.randn(batch, size)
        with torch.no_grad():
            layer.weight.mul_(torch.rand_like(layer.weight) >= zeros)
        sparse = SparseLinear.of(layer)
        with torch.inference_mode(), tempfile.TemporaryDirectory() as folder:
            calls = {
                "torch dense": lambda layer=layer, x=x: layer(x),
                "onnxruntime dense": _onnxruntime(layer, x, Path(folder) / "linear.onnx", args.threads),
                "compressed rows": lambda sparse=sparse, x=x: sparse(x),
            }
            times = timed_rounds(calls, args.rounds, args.seconds)
            error = float((sparse(x) - layer(x)).abs().max() / layer(x).abs().max())
        print(f"\nbatch {batch}, {zeros:.0%} zeros, error {error:.0e}")
        for name, found in times.items():
            us = [1e3 * t for t in found]
            ratio = statistics.median(a / b for a, b in zip(times["onnxruntime dense"], found, strict=True))
            rows.append({"batch": batch, "zeros": zeros, "candidate": name, "us": statistics.median(us), "times": us})
            rows[-1] |= {"size": size, "error": error, "vs_onnxruntime": ratio}
            print(
                f"{name:20}{statistics.median(us):>9.1f}   ({min(us):.1f} - {max(us):.1f})   {ratio:.2f} x onnxruntime"
            )
    return rows


def _onnxruntime(layer: nn.Module, x: Tensor, path: Path, threads: int) -> Callable[[], object]:
    import onnxruntime

    from paretorch.deploy import export_onnx

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(export_onnx(layer, x, path), options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: x.numpy()}
    return lambda: session.run(None, feed)


def packed_errors() -> list[dict[str, Any]]:
    """The packed layer without its kernel: what it computes, and how small it is."""
    rows = []
    for kind in ("2", "4", "8", "mixed", "blocks"):
        packed = random_packed((256, 512), kind, (64, 128), "cpu")
        layer, x = PackedLinear(packed), torch.randn(1, 512)
        wanted = x @ layer.weight.T
        error = float((layer(x) - wanted).abs().max() / wanted.abs().max())
        rows.append({"candidate": f"packed {kind}", "bits": 8 * packed.bytes / (256 * 512), "error": error})
        print(f"packed {kind:8}{rows[-1]['bits']:>6.2f} bits a weight, error {error:.0e}")
    return rows


def _shape(text: str) -> tuple[int, int]:
    outputs, inputs = text.split("x")
    return int(outputs), int(inputs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="compressed rows on the CPU, also where there is a GPU")
    parser.add_argument("--sweep", action="store_true", help="time all combinations of the settings below")
    parser.add_argument("--shapes", nargs="+", help="outputs x inputs, such as 4096x11008")
    parser.add_argument("--batch", type=int, nargs="+")
    parser.add_argument("--kinds", nargs="+", help="bits, mixed, blocks")
    parser.add_argument("--tiles", nargs="+", help="rows x columns of a tile")
    parser.add_argument("--warps", type=int, nargs="+")
    parser.add_argument("--stages", type=int, nargs="+")
    parser.add_argument("--programs", type=int, nargs="+", help="for each multiprocessor")
    parser.add_argument("--early", type=int, nargs="+", help="1: start while the kernel in front still runs")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.1, help="of a round of a candidate on the CPU")
    parser.add_argument("--threads", type=int, default=1, help="on the CPU")
    parser.add_argument("--size", type=int, default=1024, help="inputs and outputs on the CPU")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    args = parser.parse_args()
    cpu = args.cpu or not torch.cuda.is_available()
    plain, best = Tuning(), args.sweep
    args.shapes = args.shapes or (SHAPES[::2] if best else SHAPES)
    args.batch = args.batch or ([1, 64] if cpu else [1] if best else [1, 4, 16])
    args.kinds = args.kinds or (["4", "2"] if best else ["4", "2", "8", "mixed", "blocks"])
    args.tiles = args.tiles or (["64x128", "64x256", "32x256", "32x512"] if best else [f"{ROWS}x{COLUMNS}"])
    args.warps = args.warps or ([2, 4, 8] if best else [plain.warps])
    args.stages = args.stages or ([2, 3, 4] if best else [plain.stages])
    args.programs = args.programs or ([1, 2, 4, 6] if best else [plain.programs])
    args.early = args.early or ([0, 1] if best else [int(plain.early)])
    facts = {**environment(torch.device("cpu" if cpu else "cuda")), "threads": args.threads}
    print(f"torch {facts['torch']}, {facts['hardware']}")
    if cpu:
        results: dict[str, Any] = {"sparse": cpu_table(args), "packed": packed_errors()}
    elif args.sweep:
        results = {"sweep": sweep(args)}
    else:
        facts["copy_bytes_per_second"] = copy_bandwidth()
        print(f"copy {facts['copy_bytes_per_second'] / 1e12:.2f} TB/s")
        results = {"rows": gpu_table(args, facts["copy_bytes_per_second"])}
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({**facts, **results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
