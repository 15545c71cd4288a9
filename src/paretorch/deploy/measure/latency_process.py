"""The process that `measure_latency` starts: it times exported networks in turn and prints the medians as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from paretorch.deploy.measure.latency import Call, timed_rounds


def main(folder: Path, job: dict[str, Any]) -> dict[str, list[float]]:
    """Return the rounds' medians by file."""
    torch.set_num_threads(job["threads"])
    stored = load_file(folder / "example.safetensors")
    arguments = [stored[str(i)] for i in range(len(stored))]
    calls = {name: file_call(folder / name, arguments, job["threads"]) for name in job["files"]}
    with torch.inference_mode():
        return timed_rounds(calls, job["rounds"], job["seconds"])


def file_call(path: Path, arguments: list[Tensor], threads: int) -> Call:
    """Return a call of an exported network."""
    if path.suffix == ".onnxruntime":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        names = [one.name for one in session.get_inputs()]
        feed = {name: tensor.numpy() for name, tensor in zip(names, arguments, strict=True)}
        return lambda: session.run(None, feed)
    with path.open("rb") as file:
        module = torch.export.load(file).module()
    return lambda: module(*arguments)


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), json.loads(sys.argv[2]))))
