"""Aim: an artefact's weights take at most 1.03 x the empirical entropy of their own values plus 2 kB, and less than
zstd -22 or xz -9 make of the best plain layout; 25 million weights encode in 10 s and decode in 3 s on two cores.

    python benchmarks/artefact.py            # ResNet-20-sized and a 25-million-weight network, synthetic weights
    python benchmarks/artefact.py FILE.pare  # the same table for a file of yours

Plain layouts tried for the rivals, the smallest counts: one byte per weight (its code), the same transposed to outputs
last, packed bits of mask and codes apart, and fp16. Entropy: order 0, of every tensor's own values, tables free of charge.
"""

from __future__ import annotations

import lzma
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from paretorch.deploy import load, save
from paretorch.deploy.artefact import open_artefact


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


def rivals(state: dict[str, Tensor], patient: bool) -> tuple[str, str]:
    """The best that zstd and xz reach over the layouts; the large network gets faster levels."""
    best_zstd, best_xz = sys.maxsize, sys.maxsize
    for data in layouts(state).values():
        best_xz = min(best_xz, len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME if patient else 2)))
        try:
            import zstandard
        except ImportError:
            continue
        best_zstd = min(best_zstd, len(zstandard.ZstdCompressor(level=22 if patient else 9).compress(data)))
    return f"{best_zstd:,}" if best_zstd < sys.maxsize else "-", f"{best_xz:,}"


def line(name: str, model: nn.Module, patient: bool) -> list[str]:
    state = {key: tensor.detach() for key, tensor in model.state_dict().items() if tensor.dim() > 1}
    bound = entropy(state)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.pare"
        start = time.perf_counter()
        sizes = save(model, path)
        encode = time.perf_counter() - start
        start = time.perf_counter()
        load(path, into=model)
        decode = time.perf_counter() - start
    ours = sum(sizes.tensors[key].total for key in state)
    free = any(sizes.tensors[key].coding in ("planes", "sparse") for key in state)  # floats: no order-0 bound
    numbers = [f"{sum(t.numel() for t in state.values()):,}", "-" if free else f"{bound:,.0f}", f"{ours:,.0f}"]
    numbers.append("-" if free else f"{ours / bound:.4f}")
    return [name, *numbers, f"{sizes.total:,}", *rivals(state, patient), f"{encode:.2f}", f"{decode:.2f}"]


def main() -> None:
    heads = ["network", "weights", "entropy", "ours", "ratio", "file", "zstd", "xz", "encode s", "decode s"]
    rows = [heads]
    if len(sys.argv) > 1:
        source, _ = open_artefact(sys.argv[1])
        if isinstance(source, dict):
            module = nn.Module()
            for i, tensor in enumerate(source.values()):
                module.register_buffer(f"t{i}", tensor)
            source = module
        rows.append(line(Path(sys.argv[1]).name, source, patient=True))
    else:
        resnet20 = [(16, 3, 3, 3), *[(16, 16, 3, 3)] * 6, (32, 16, 3, 3), *[(32, 32, 3, 3)] * 5]
        resnet20 += [(64, 32, 3, 3), *[(64, 64, 3, 3)] * 5, (10, 64)]
        for kind in ("95 % zero, 3 bits", "bits per weight, mean 2", "bits per row, mean 2", "95 % zero, fp32"):
            rows.append(line(f"ResNet-20, {kind}", network(resnet20, kind), patient=True))
        large = [(512, 544, 3, 3)] * 10
        for kind in ("95 % zero, 3 bits", "bits per weight, mean 2", "bits per row, mean 2"):
            rows.append(line(f"25 M, {kind}", network(large, kind), patient=False))
    widths = [max(len(row[i]) for row in rows) for i in range(len(heads))]
    for row in rows:
        print(
            "  ".join(
                cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
        )
    print(
        "sizes in bytes; ours: the weights' share of the file, tables included; zstd -22 and xz -9e (25 M: -9 and -2)"
    )


if __name__ == "__main__":
    main()
