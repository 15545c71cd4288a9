"""The table of `packed_linear.py --cpu`: `W @ xᵀ` in compressed rows against dense torch and dense onnxruntime."""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paretorch.deploy.fast import SparseLinear
from paretorch.deploy.measure.latency import timed_rounds


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
