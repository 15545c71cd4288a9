"""The process that `measure_latency` starts: times one exported network and prints the rounds' medians as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from paretorch.deploy.latency import timed_rounds


def main(folder: Path, job: dict[str, Any]) -> list[float]:
    example = load_file(folder / "example.safetensors")["example"]
    path = folder / f"model.{job['runtime']}"
    torch.set_num_threads(job["threads"])
    if job["runtime"] == "onnxruntime":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = job["threads"]
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        feed = {session.get_inputs()[0].name: example.numpy()}
        return timed_rounds(lambda: session.run(None, feed), job["rounds"], job["seconds"])
    with path.open("rb") as file:
        module = torch.export.load(file).module()
    with torch.inference_mode():
        return timed_rounds(lambda: module(example), job["rounds"], job["seconds"])


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), json.loads(sys.argv[2]))))
