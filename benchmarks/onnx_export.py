"""Claim: a network of few bits is a small ONNX file that runs as fast as the fp32 one, with the same outputs.

    python benchmarks/onnx_export.py [--batch 1 32] [--threads 2] [--rounds 9]

A ResNet-20 with random weights of 0 to p bits, p by layer from 1 to 4, and norms as training leaves them. Each file is run in
this process, in turn, for several rounds; times are medians, given as ratios to the fp32 file. "qdq, folded" is the qdq file
with the session option session.disable_quant_qdq. Differences are the largest, relative to the largest output.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn

from paretorch import export_onnx, zoo
from paretorch.methods.precision.grid import quantize


def network(most: int = 4) -> nn.Module:
    """ResNet-20 with weights of mixed bits; layer after layer has 1, 2, … bits at most."""
    torch.manual_seed(0)
    model = zoo.build("resnet20")
    layers = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    with torch.no_grad():
        for i, layer in enumerate(layers):
            weight = layer.weight
            bits = torch.randint(0, i % most + 2, weight.shape, dtype=torch.int32)
            scale = 2.0 ** torch.floor(torch.log2(weight.abs().max()))
            weight.copy_(quantize(weight / scale, bits) * scale)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.uniform_(0.5, 1.5)
                module.bias.normal_(0.0, 0.2)
                module.running_mean.normal_(0.0, 0.2)
                module.running_var.uniform_(0.5, 2.0)
    return model.eval()


def write(model: nn.Module, folder: Path) -> dict[str, Path]:
    example = torch.randn(2, 3, 32, 32)
    files = {
        form: export_onnx(model, example, folder / f"{form}.onnx", weights=form) for form in ("fp32", "packed", "qdq")
    }
    seen = torch.randn(256, 3, 32, 32)
    files["int8"] = export_onnx(model, example, folder / "int8.onnx", calibrate=seen.split(64))
    return {**files, "qdq, folded": files["qdq"]}


def open_session(path: Path, threads: int, folded: bool) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    if folded:
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def time_all(sessions: dict[str, Any], x: np.ndarray, rounds: int) -> dict[str, float]:
    """Median seconds of a call, in turn."""
    times: dict[str, list[float]] = {name: [] for name in sessions}
    for number in range(rounds + 1):
        for name, session in sessions.items():
            for _ in range(5):
                start = time.perf_counter()
                session.run(None, {"input": x})
                if number:  # the first round warms up
                    times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def difference(session: Any, model: nn.Module, x: Tensor) -> float:
    with torch.no_grad():
        wanted = model(x).numpy()
    return float(np.abs(session.run(None, {"input": x.numpy()})[0] - wanted).max() / np.abs(wanted).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    model = network()
    with tempfile.TemporaryDirectory() as scratch:
        files = write(model, Path(scratch))
        sizes = {name: path.stat().st_size for name, path in files.items()}
        sessions = {name: open_session(path, options.threads, "folded" in name) for name, path in files.items()}
    x = torch.randn(64, 3, 32, 32)
    times = {
        batch: time_all(sessions, torch.randn(batch, 3, 32, 32).numpy(), options.rounds) for batch in options.batch
    }
    heads = "".join(f"{f'time, batch {batch}':>16}" for batch in options.batch)
    print(f"{'file':14}{'bytes':>12}{'of fp32':>10}{'difference':>12}{heads}")
    for name, session in sessions.items():
        ratios = "".join(f"{times[batch][name] / times[batch]['fp32']:>16.2f}" for batch in options.batch)
        share = sizes[name] / sizes["fp32"]
        print(f"{name:14}{sizes[name]:>12,}{share:>10.3f}{difference(session, model, x):>12.1e}{ratios}")
    for batch in options.batch:
        print(f"fp32, batch {batch}: {1e3 * times[batch]['fp32']:.2f} ms on {options.threads} threads")


if __name__ == "__main__":
    main()
