"""Aim: a Linear with packed weights is faster than a dense one, by about as much as it reads less memory.

On one H200, batch 1, weights 4096 × 11008 and 8192 × 28672 (outputs × inputs) that come from memory: at least 2.5 × faster
than bf16 at 4 bits, at least 4 × at 2 bits, and not slower than torch's own int4 product (`_weight_int4pack_mm`, one scale
for 128 weights). On a CPU: `W @ xᵀ` in compressed rows against dense torch and dense onnxruntime, at 90 to 99 % zeros.

    python benchmarks/packed_linear.py                     # the table of a GPU; on a machine without one, that of --cpu
    python benchmarks/packed_linear.py --cpu --threads 1   # compressed rows, and a small packed layer for its error alone
    python benchmarks/packed_linear.py --sweep --ahead 12  # which settings are best; 12 processes compile them first

On a GPU every candidate goes through so many copies of its weights that none stays in the cache, all launches replayed from
a CUDA graph. All candidates take turns, several rounds; the tables show medians over rounds, of ratios within a round.
Packed layers run by the setting that `pt.optimize` would choose, by measurement, unless --settings names one: a tile, programs on
a multiprocessor x warps, and what else `Tuning` has (32x256:1x8:stages=4:early). Results are written as they come.
Errors are the largest difference from the product with the dequantized fp32 weight, relative to the largest output.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import multiprocessing
import statistics
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from paretorch.deploy.fast import PackedLinear
from paretorch.deploy.fast.launch import SETTINGS, Setting, Tuning
from paretorch.deploy.fast.packing import COLUMNS, ROWS, Packed
from paretorch.deploy.fast.replacements import fastest_setting, random_tiles
from paretorch.deploy.measure.latency import elapsed, timer
from paretorch.training.folder import environment

DEVICE = "cuda"
SHAPES = ["4096x11008", "11008x4096", "8192x28672", "28672x8192"]
BEYOND_CACHE = 400_000_000  # bytes of weights to go through before one is read again
GROUP = 128
SWEEP = [  # the most promising first
    *("32x256:1x8:early", "32x256:1x8", "32x256:4x2", "64x256:4x2", "32x256:2x4", "32x256:4x2:early"),
    *("32x256:1x16:early", "32x256:1x16", "64x256:2x4", "32x256:2x4:early", "64x128:4x2", "32x512:1x8:early"),
    *("32x512:1x8", "32x256:2x8", "64x256:2x4:early", "32x256:1x8:stages=3", "32x256:1x8:stages=6:early"),
    *("32x256:4x2:stages=3", "32x256:4x2:stages=6", "32x512:2x4"),
]
Call = Callable[[], Tensor]
Case = tuple[str, str, int]
Keep = Callable[..., None]


def random_packed(shape: tuple[int, int], kind: str, tile: tuple[int, int], device: str) -> Packed:
    """Random codes. kind: a width; "mixed" (channels: a quarter each of 8 and 2 bits, half of 4); "blocks" (any)."""
    if kind not in ("mixed", "blocks"):
        return random_tiles(shape, tile, int(kind), True, device)
    tiles, blocks = -(-shape[0] // tile[0]), -(-shape[1] // tile[1])
    pick = (torch.arange(tiles) * 4 // tiles)[:, None].expand(-1, blocks)
    if kind == "blocks":
        pick = torch.randint(4, (tiles, blocks), generator=torch.Generator().manual_seed(0))
    return random_tiles(shape, tile, torch.tensor([8, 4, 4, 2])[pick], True, device)


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


def gpu_table(args: argparse.Namespace, bandwidth: float, keep: Keep) -> None:
    rows: list[dict[str, Any]] = []
    for text, batch in itertools.product(args.shapes, args.batch):
        field, settings = new_field(text, batch), {}
        for kind in args.kinds:
            packed = random_packed(_shape(text), kind, (ROWS, COLUMNS), DEVICE)
            setting = parse(args.settings[0]) if args.settings else chosen(packed, field.x)
            if setting.tile != packed.tile:
                packed = random_packed(_shape(text), kind, setting.tile, DEVICE)
            weight = PackedLinear(packed).weight
            if kind == "4":
                field.add_dense(weight)
                field.add_int4(weight)
            settings[f"packed {kind}"] = str(setting)
            field.add_packed(f"packed {kind}", packed, setting.tuning, weight)
        found = field.measure(args.rounds, 5.0)
        for row in found:
            setting_of = {"setting": settings[row["candidate"]]} if row["candidate"] in settings else {}
            rows.append({"shape": text, "batch": batch, **row, **_ratios(row, found), **setting_of})
        keep(rows=rows)
        print(f"\n{text}, batch {batch}")
        print(f"{'':16}{'us':>9}{'x bf16':>9}{'x int4':>9}{'TB/s':>8}{'of copy':>9}{'error':>10}")
        for row in rows[-len(found) :]:
            speed = row["bytes"] / row["us"] * 1e-6
            print(
                f"{row['candidate']:16}{row['us']:>9.2f}{row['vs_bf16']:>9.2f}{row['vs_int4']:>9.2f}{speed:>8.2f}"
                f"{speed * 1e12 / bandwidth:>9.0%}{row['error']:>10.1e}  {row.get('setting', '')}",
                flush=True,
            )
        del field
        torch.cuda.empty_cache()


def new_field(shape: str, batch: int) -> Field:
    torch.manual_seed(0)
    return Field(torch.randn(batch, _shape(shape)[1], device=DEVICE).bfloat16())


def chosen(packed: Packed, x: Tensor) -> Setting:
    """What `pt.optimize` would choose."""
    return fastest_setting(PackedLinear(packed), x, timer(x.device, 5, 0.005, graphs=True)).setting


def parse(text: str) -> Setting:
    """32x256:1x8:stages=4:early"""
    tile, programs, *rest = text.split(":")
    options = {name: int(value or 1) for name, _, value in (part.partition("=") for part in rest)}
    early = bool(options.pop("early", 0))
    return Setting(Tuning(*_shape(programs), **options, early=early), _shape(tile))


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


def sweep(args: argparse.Namespace, keep: Keep) -> None:
    """Setting by setting, each for all cases, so that wherever it is stopped the best are known of those tried."""
    rows: list[dict[str, Any]] = []
    dense: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for text, batch in itertools.product(args.shapes, args.batch):
        field, packed = new_field(text, batch), random_packed(_shape(text), "4", (ROWS, COLUMNS), DEVICE)
        field.add_dense(weight := PackedLinear(packed).weight)
        field.add_int4(weight)
        dense[text, batch] = [{"shape": text, "batch": batch, **row} for row in field.measure(3, 3.0)]
        print(f"{text}, batch {batch}: " + ", ".join(f"{r['candidate']} {r['us']:.2f} us" for r in dense[text, batch]))
        del field, packed, weight
    fastest: dict[Case, float] = {}
    for setting, case in itertools.product(map(parse, args.settings or SWEEP), _cases(args)):
        torch.cuda.empty_cache()
        row = try_setting(setting, case)
        if row is None:
            continue
        text, kind, batch = case
        row |= {
            "shape": text,
            "kind": kind,
            "batch": batch,
            "setting": str(setting),
            **_ratios(row, dense[text, batch]),
        }
        rows.append(row)
        keep(sweep=rows, dense=list(itertools.chain(*dense.values())))
        best = "  best so far" if row["us"] < fastest.get(case, float("inf")) else ""
        fastest[case] = min(row["us"], fastest.get(case, float("inf")))
        print(
            f"{text:12}{kind:>6} bits, batch {batch:<3}{row['us']:>8.2f} us{row['vs_bf16']:>6.2f} x bf16"
            f"{row['vs_int4']:>6.2f} x int4{row['error']:>9.1e}  {setting}{best}",
            flush=True,
        )


def try_setting(setting: Setting, case: Case) -> dict[str, Any] | None:
    shape, kind, batch = case
    try:
        field, packed = new_field(shape, batch), random_packed(_shape(shape), kind, setting.tile, DEVICE)
        field.add_packed("packed", packed, setting.tuning, PackedLinear(packed).weight)
        return field.measure(3, 3.0)[0]
    except Exception as error:  # Triton has its own types for what does not fit into shared memory
        print(f"{case} {setting}: {type(error).__name__}", flush=True)
        return None


def compile_ahead(args: argparse.Namespace) -> None:
    """Fill Triton's cache on disk, by several processes: compiling takes longer than measuring."""
    settings = map(parse, args.settings or SWEEP) if args.settings or args.sweep else SETTINGS
    tasks = list(itertools.product(settings, _cases(args)))
    with ProcessPoolExecutor(args.ahead, mp_context=multiprocessing.get_context("spawn")) as pool:
        done = sum(pool.map(compile_one, *zip(*tasks, strict=True)))
    print(f"compiled {done} of {len(tasks)} kernels", flush=True)


def compile_one(setting: Setting, case: Case) -> bool:
    shape, kind, batch = case
    try:
        layer = PackedLinear(random_packed(_shape(shape), kind, setting.tile, DEVICE))
        layer.tuning = setting.tuning
        layer(new_field(shape, batch).x)
    except Exception:  # what does not run is said when it is measured
        return False
    return True


def _cases(args: argparse.Namespace) -> list[Case]:
    return list(itertools.product(args.shapes, args.kinds, args.batch))


def packed_errors() -> list[dict[str, Any]]:
    """The packed layer without its kernel: what it computes, and how small it is."""
    rows = []
    for kind in ("2", "4", "8", "mixed", "blocks"):
        packed = random_packed((256, 512), kind, (ROWS, COLUMNS), "cpu")
        layer, x = PackedLinear(packed), torch.randn(1, 512)
        wanted = x @ layer.weight.T
        error = float((layer(x) - wanted).abs().max() / wanted.abs().max())
        rows.append({"candidate": f"packed {kind}", "bits": 8 * packed.bytes / (256 * 512), "error": error})
        print(f"packed {kind:8}{rows[-1]['bits']:>6.2f} bits per weight, error {error:.0e}")
    return rows


def _shape(text: str) -> tuple[int, int]:
    outputs, inputs = text.split("x")
    return int(outputs), int(inputs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="compressed rows on the CPU, also where there is a GPU")
    parser.add_argument("--sweep", action="store_true", help="time all --settings, or a list of promising ones")
    parser.add_argument("--shapes", nargs="+", help="outputs x inputs, such as 4096x11008")
    parser.add_argument("--batch", type=int, nargs="+")
    parser.add_argument("--kinds", nargs="+", help="bits, mixed, blocks")
    parser.add_argument("--settings", nargs="+", help="such as 32x256:1x8:early; without --sweep the first counts")
    parser.add_argument("--ahead", type=int, default=0, help="compile with so many processes before measuring")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.1, help="of a round of a candidate on the CPU")
    parser.add_argument("--threads", type=int, default=1, help="on the CPU")
    parser.add_argument("--size", type=int, default=1024, help="inputs and outputs on the CPU")
    parser.add_argument("--json", type=Path, help="write all numbers to this file, as they come")
    args = parser.parse_args()
    cpu = args.cpu or not torch.cuda.is_available()
    best = args.sweep
    args.shapes = args.shapes or (SHAPES[::2] if best else SHAPES)
    args.batch = args.batch or ([1, 64] if cpu else [1] if best else [1, 4, 16])
    args.kinds = args.kinds or (["4", "2"] if best else ["4", "2", "8", "mixed", "blocks"])
    facts = {**environment(torch.device("cpu" if cpu else "cuda")), "threads": args.threads}
    print(f"torch {facts['torch']}, {facts['hardware']}")

    def keep(**results: Any) -> None:
        if args.json:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            part = args.json.with_suffix(".part")
            part.write_text(json.dumps({**facts, **results}, indent=1) + "\n")
            part.replace(args.json)  # whole at any time

    if args.ahead and not cpu:
        compile_ahead(args)
    if cpu:
        from compressed_rows import cpu_table  # beside this file

        keep(sparse=cpu_table(args), packed=packed_errors())
    elif args.sweep:
        sweep(args, keep)
    else:
        facts["copy_bytes_per_second"] = copy_bandwidth()
        print(f"copy {facts['copy_bytes_per_second'] / 1e12:.2f} TB/s")
        gpu_table(args, facts["copy_bytes_per_second"], keep)


if __name__ == "__main__":
    main()
