"""Aim: an artefact's weights take at most 1.03 x the empirical entropy of their own values plus 2 kB, and less than
zstd -22 or xz -9 make of the best plain layout; 25 million weights encode in 10 s and decode in 3 s on two cores, and
loading them into a module takes at most 1.3 x the memory of the dense weights, the module itself included.

    python benchmarks/artefact.py            # ResNet-20-sized and a 25-million-weight network, synthetic weights
    python benchmarks/artefact.py FILE.pare  # the same table for a file of yours
    python benchmarks/artefact.py --json results/artefact/cpu.json

Plain layouts tried for the rivals, the smallest counts: one byte per weight (its code), the same transposed to outputs
last, packed bits of mask and codes apart, and fp16. Entropy: order 0, of every tensor's own values, tables free of charge.
"""

from __future__ import annotations

import argparse
import json
import lzma
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from paretorch.deploy import load, save
from paretorch.deploy.artefact import open_artefact

RESNET20 = [(16, 3, 3, 3), *[(16, 16, 3, 3)] * 6, (32, 16, 3, 3), *[(32, 32, 3, 3)] * 5]
RESNET20 += [(64, 32, 3, 3), *[(64, 64, 3, 3)] * 5, (10, 64)]
LARGE = [(512, 544, 3, 3)] * 10
KINDS = ("95 % zero, 3 bits", "bits per weight, mean 2", "bits per row, mean 2", "95 % zero, fp32")


def odd_grid(weight: Tensor, precision: Tensor) -> Tensor:
    """The nearest odd multiple of 2**(1-p) within p bits; zero where p is 0."""
    p = precision.float()
    step, half = 2.0 ** (1 - p), 2.0 ** (p - 1)
    j = torch.floor(weight / (2 * step)).clamp(-half, half - 1)
    return torch.where(precision == 0, 0.0, (2 * j + 1) * step)


def network(shapes: list[tuple[int, ...]], kind: str) -> nn.Module:
    """Gaussian weights in the state that a method leaves them in."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Module()
    for i, shape in enumerate(shapes):
        weight = 0.3 * torch.randn(shape, generator=generator)
        rows = (shape[0], *[1] * (len(shape) - 1))
        if kind == "95 % zero, 3 bits":
            keep = torch.rand(shape, generator=generator) < 0.05
            weight = odd_grid(weight, 3 * keep)
        elif kind == "bits per weight, mean 2":
            weight = odd_grid(weight, torch.randint(0, 5, shape, generator=generator))
        elif kind == "bits per row, mean 2":
            weight = odd_grid(weight, torch.randint(0, 5, rows, generator=generator).expand(shape))
        elif kind == "95 % zero, fp32":
            weight = weight * (torch.rand(shape, generator=generator) < 0.05)
        model.register_parameter(f"w{i}", nn.Parameter(weight))
    return model


def entropy(state: dict[str, Tensor]) -> float:
    """Bytes: sum of n H(values) over the tensors."""
    total = 0.0
    for tensor in state.values():
        _, counts = np.unique(tensor.numpy(), return_counts=True)
        total -= float((counts * np.log2(counts / counts.sum())).sum()) / 8
    return total


def layouts(state: dict[str, Tensor]) -> dict[str, bytes]:
    """Plain bytes that hold the same values (tables of values left out, in the rivals' favour)."""
    codes, turned, masks, kept, halves = [], [], [], [], []
    for tensor in state.values():
        values, places = np.unique(tensor.numpy(), return_inverse=True)
        if values.size > 256:
            return {"fp32": b"".join(item.numpy().tobytes() for item in state.values())}
        places = places.reshape(tensor.shape).astype(np.uint8)
        codes.append(places.tobytes())
        turned.append(np.ascontiguousarray(np.moveaxis(places, 0, -1)).tobytes())
        mask = tensor.numpy() != 0
        masks.append(np.packbits(mask).tobytes())
        kept.append(places[mask].tobytes())
        halves.append(tensor.half().numpy().tobytes())
    apart = b"".join(masks) + b"".join(kept)
    return {"bytes": b"".join(codes), "turned": b"".join(turned), "mask + bytes": apart, "fp16": b"".join(halves)}


def rivals(state: dict[str, Tensor], patient: bool) -> tuple[int | None, int]:
    """The best that zstd and xz reach over the layouts; the large network gets faster levels."""
    best_zstd, best_xz = sys.maxsize, sys.maxsize
    for data in layouts(state).values():
        best_xz = min(best_xz, len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME if patient else 2)))
        try:
            import zstandard
        except ImportError:
            continue
        best_zstd = min(best_zstd, len(zstandard.ZstdCompressor(level=22 if patient else 9).compress(data)))
    return best_zstd if best_zstd < sys.maxsize else None, best_xz


def peak_of_loading(path: Path) -> float:
    """Memory of a process that makes the large module and fills it from the file, over the bytes of its weights."""
    found = subprocess.run([sys.executable, __file__, "--fill", str(path)], capture_output=True, text=True, check=True)
    return float(found.stdout)


def fill(path: str) -> None:
    import constriction  # noqa: F401 - so that libraries are there before the first look
    import safetensors.numpy  # noqa: F401

    before = _high_water()
    model = nn.Module()
    for i, shape in enumerate(LARGE):
        model.register_parameter(f"w{i}", nn.Parameter(torch.ones(shape)))
    load(path, into=model)
    print((_high_water() - before) / sum(4 * p.numel() for p in model.parameters()))


def _high_water() -> int:
    """The most bytes of memory that this process has had (Linux; getrusage would give the parent's as well)."""
    found = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return 1024 * int(found.split()[1])


def measure(name: str, model: nn.Module, large: bool) -> dict[str, object]:
    state = {key: tensor.detach() for key, tensor in model.state_dict().items() if tensor.dim() > 1}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.pare"
        start = time.perf_counter()
        sizes = save(model, path)
        encode = time.perf_counter() - start
        start = time.perf_counter()
        load(path, into=model)
        decode = time.perf_counter() - start
        peak = peak_of_loading(path) if large else None
    ours = sum(sizes.tensors[key].total for key in state)
    free = any(sizes.tensors[key].coding in ("planes", "sparse") for key in state)  # floats: no order-0 bound
    bound = None if free else entropy(state)
    zstd, xz = rivals(state, not large)
    return {
        "network": name,
        "weights": sum(t.numel() for t in state.values()),
        "entropy": bound,
        "ours": ours,
        "ratio": None if bound is None else ours / bound,
        "file": sizes.total,
        "zstd": zstd,
        "xz": xz,
        "encode s": encode,
        "decode s": decode,
        "peak": peak,
    }


def show(rows: list[dict[str, object]]) -> None:
    formats = {"ratio": ".4f", "encode s": ".2f", "decode s": ".2f", "peak": ".2f"}
    table = [list(rows[0])]
    for row in rows:
        table.append([_cell(value, formats.get(name, ",.0f")) for name, value in row.items()])
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    for row in table:
        cells = zip(row, widths, strict=True)
        print("  ".join(cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(cells)))
    print("sizes in bytes; ours: the weights' share of the file, tables included; zstd -22, xz -9e (25 M: -9 and -2);")
    print("peak: memory of loading, over that of the dense weights, the module included")


def _cell(value: object, form: str) -> str:
    return "-" if value is None else value if isinstance(value, str) else format(value, form)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", help="an artefact of yours")
    parser.add_argument("--json", type=Path, help="write the rows here too")
    parser.add_argument("--fill", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fill:
        fill(options.fill)
        return
    if options.file:
        source, _ = open_artefact(options.file)
        if isinstance(source, dict):
            module = nn.Module()
            for i, tensor in enumerate(source.values()):
                module.register_buffer(f"t{i}", tensor)
            source = module
        rows = [measure(Path(options.file).name, source, large=False)]
    else:
        rows = [measure(f"ResNet-20, {kind}", network(RESNET20, kind), large=False) for kind in KINDS]
        rows += [measure(f"25 M, {kind}", network(LARGE, kind), large=True) for kind in KINDS]
    show(rows)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        machine = {"machine": platform.machine(), "threads": torch.get_num_threads(), "torch": torch.__version__}
        options.json.write_text(json.dumps({"hardware": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
