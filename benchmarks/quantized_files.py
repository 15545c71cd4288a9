"""How near the artefact of a quantized network is to its information, for the ways in which people quantize.

    python benchmarks/quantized_files.py                 # a table
    python benchmarks/quantized_files.py --json cpu.json

Each case is a weight of normal numbers, rounded in one of these ways with no code of the library. The ideal is the entropy of
the codes, given the bits of their group, plus the entropy of the map of bits, plus the steps (and offsets) at the width in which they were
made, 16 or 32 bits; of whole zero points, their entropy, or nothing if multiples of the step are cheaper without them. The last case is GPTQ's layout on shapes of a small language model: 4 bits in groups of 96 with zero points.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import paretorch as pt

Array = np.ndarray
Case = tuple[Array, float]  # the weight, and its ideal bytes


def entropy(numbers: Array) -> float:
    """Return bytes of these symbols, coded with their own frequencies."""
    counts = np.unique(numbers, return_counts=True)[1]
    return float(counts @ np.log2(counts.sum() / counts)) / 8


def normal(shape: tuple[int, int], seed: int = 0) -> Array:
    return (0.05 * np.random.default_rng(seed).normal(size=shape)).astype(np.float32)


def grouped(shape: tuple[int, int], length: int, bits: int, offset: str, dtype: type, zeros: float = 0.0) -> Case:
    """Return a weight with one step per group; offset: none, "whole" zero points, or "real" offsets."""
    weight = normal(shape).reshape(-1, length)
    keep = np.random.default_rng(1).random(weight.shape) >= zeros
    low, high = weight.min(1, keepdims=True), weight.max(1, keepdims=True)
    if offset == "none":
        step = (np.abs(weight).max(1, keepdims=True) / (2 ** (bits - 1) - 1)).astype(dtype).astype(np.float32)
        codes = np.rint(weight / step).clip(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        values, extra = codes * step, 0.0
    else:
        step = ((high - low) / (2**bits - 1)).astype(dtype).astype(np.float32)
        if offset == "whole":
            zero = np.rint(-low / step)
            codes = (np.rint(weight / step) + zero).clip(0, 2**bits - 1)
            values, extra = step * (codes - zero), entropy(zero)
        else:
            least = low.astype(dtype).astype(np.float32)
            codes = np.rint((weight - least) / step).clip(0, 2**bits - 1)
            values, extra = codes * step + least, least.size * np.dtype(dtype).itemsize
    symbols = np.where(keep & (values != 0), codes + 1000, 0)  # a zero that was pruned looks as one that was rounded
    best = entropy(symbols) + extra
    if offset == "whole":  # multiples of the step need no zero point; whichever is smaller
        best = min(best, entropy((codes - zero) * keep))
    ideal = best + step.size * np.dtype(dtype).itemsize
    return (values * keep).astype(np.float32).reshape(shape), ideal


def mixed(shape: tuple[int, int], block: tuple[int, int], choices: tuple[int, ...], real: str = "") -> Case:
    """Return a weight whose blocks have different bits, on the grid of chapter 5: odd multiples of 2**(1 - bits).

    Args:
        real: "row" or "block": who has a scale of its own, any fp32 number.
    """
    random = np.random.default_rng(2)
    places = (-(-shape[0] // block[0]), -(-shape[1] // block[1]))
    bits = random.choice(choices, size=places)

    def spread(numbers: Array) -> Array:
        return np.repeat(np.repeat(numbers, block[0], axis=0), block[1], axis=1)[: shape[0], : shape[1]]

    each = spread(bits)
    fine = 2.0 ** (1 - each)
    odd = (
        2 * np.floor(normal(shape).astype(np.float64) * 12 / fine / 2).clip(-(2.0 ** (each - 1)), 2.0 ** (each - 1) - 1)
        + 1
    )
    step = fine.astype(np.float32)
    scales = 0
    if real:
        count = (shape[0], 1) if real == "row" else places
        own = (0.5 + random.random(count)).astype(np.float32)
        step = step * (np.broadcast_to(own, shape) if real == "row" else spread(own))
        scales = own.nbytes
    codes = sum(entropy(odd[each == one]) for one in choices)
    return odd.astype(np.float32) * step, codes + entropy(bits) + scales


def cases(rows: int) -> dict[str, Callable[[], Case]]:
    half, full = np.float16, np.float32
    found: dict[str, Callable[[], Case]] = {}
    for bits in (2, 4, 8):
        found[f"{bits} bits, step per channel"] = lambda bits=bits: grouped((2048, 2048), 2048, bits, "none", full)
    for length in (32, 96, 128):
        for offset in ("none", "whole", "real"):
            for dtype in (half, full):
                name = f"4 bits, groups of {length}, offsets: {offset}, {np.dtype(dtype).name}"
                found[name] = lambda n=length, o=offset, d=dtype: grouped((2048, 1536), n, 4, o, d)
    found["3 bits, groups of 50, offsets: whole, float32"] = lambda: grouped((2048, 1600), 50, 3, "whole", full)
    found["4 bits, groups of 64, half zeros"] = lambda: grouped((2048, 1536), 64, 4, "none", half, 0.5)
    found["4 bits, step per channel, 90 % zeros"] = lambda: grouped((2048, 1536), 1536, 4, "none", full, 0.9)
    found[f"bits 3 to 5 per row, {rows:,} rows"] = lambda: mixed((rows, 288), (1, 288), (3, 4, 5))
    found[f"bits 3 to 6 per row, {rows:,} rows"] = lambda: mixed((rows, 288), (1, 288), (3, 4, 5, 6))
    found[f"bits 2 to 8 per row, {rows:,} rows"] = lambda: mixed((rows, 288), (1, 288), (2, 3, 4, 5, 6, 7, 8))
    found["bits 2 to 5 per block (1, 32)"] = lambda: mixed((rows, 288), (1, 32), (2, 3, 4, 5))
    found["bits 2 to 5 per block (8, 8)"] = lambda: mixed((2048, 1536), (8, 8), (2, 3, 4, 5))
    found["bits 2 to 5 per block (1, 32), real scale per row"] = lambda: mixed(
        (2048, 1536), (1, 32), (2, 3, 4, 5), "row"
    )
    found["bits 2 to 5 per block (1, 128), real scale per block"] = lambda: mixed(
        (2048, 1536), (1, 128), (2, 3, 4, 5), "block"
    )
    return found


def measure(weights: dict[str, Array]) -> dict[str, float]:
    """Save and load a network of these weights; return bytes and seconds, by the clock and of CPU time. Raises if a value comes back otherwise."""
    model, empty = nn.Module(), nn.Module()
    for name, weight in weights.items():
        model.register_parameter(name, nn.Parameter(torch.from_numpy(weight)))
        empty.register_parameter(name, nn.Parameter(torch.zeros(weight.shape)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.pare"
        start = (time.perf_counter(), time.process_time())
        size = pt.save(model, path).total
        saved = (time.perf_counter(), time.process_time())
        pt.load(path, into=empty)
        loaded = (time.perf_counter(), time.process_time())
    for name, weight in weights.items():
        if not np.array_equal(empty.get_parameter(name).detach().numpy(), weight):
            raise SystemExit(f"{name} came back with other values")
    spent = {"save": (start, saved), "load": (saved, loaded)}
    wall = {f"{what}_s": round(end[0] - begin[0], 2) for what, (begin, end) in spent.items()}
    return {
        "bytes": size,
        **wall,
        **{f"{what}_cpu_s": round(end[1] - begin[1], 2) for what, (begin, end) in spent.items()},
    }


def language_model() -> tuple[dict[str, Array], float]:
    """Return GPTQ's layout, 4 bits in groups of 96 with zero points, on the shapes of a model of 15 million weights."""
    shapes = [(32_000, 288), *[(288, 288)] * 24, *[(768, 288)] * 12, *[(288, 768)] * 6]
    made = [grouped(shape, 96, 4, "whole", np.float32) for shape in shapes]
    return {f"w{i}": weight for i, (weight, _) in enumerate(made)}, sum(ideal for _, ideal in made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=32_000, help="rows of the tall layers")
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    print(f"{'case':58}{'weights':>12}{'ideal':>12}{'bytes':>12}{'ratio':>8}{'save':>8}{'load':>7}  (s of CPU time)")

    def show(name: str, weights: dict[str, Array], ideal: float) -> None:
        count = sum(weight.size for weight in weights.values())
        found = {"weights": count, "ideal": round(ideal), **measure(weights)}
        results[name] = found
        timed = f"{found['save_cpu_s']:>7.2f}s{found['load_cpu_s']:>6.2f}s"
        print(
            f"{name:58}{count:>12,}{ideal:>12,.0f}{found['bytes']:>12,}{found['bytes'] / ideal:>8.3f}{timed}",
            flush=True,
        )

    for name, make in cases(options.rows).items():
        weight, ideal = make()
        show(name, {"w": weight}, ideal)
    show("a language model, 4 bits, groups of 96, offsets: whole", *language_model())
    if options.json:
        about = {
            "torch": torch.__version__,
            "numpy": np.__version__,
            "machine": platform.machine(),
            "threads": torch.get_num_threads(),
        }
        options.json.write_text(json.dumps({"about": about, "cases": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
