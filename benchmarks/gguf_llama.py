"""Claim: llama.cpp computes a GGUF file of ours as torch computes the network, and loses less by it than by its own rounding.

For each format: the bytes of the file, the loss on held-out rows in torch and in llama.cpp, and the largest difference of a logit relative to the largest
logit. "rounded" has the steps of least squared error, without data; "shrunk" is `pt.shrink` on rows that are not held out: rounded by
second order, then trained ("trained" says whether that helped). Beside them is the file
that llama.cpp's own quantizer makes of the dense network, all tensors in the same format where it has codes for them.

The folder is that of `benchmarks/story_bed.py`: a network that transformers can load, and ids.pt, one row of tokens per text; the last rows are held out.
Needs llama-cpp-python.

    python benchmarks/gguf_llama.py FOLDER --steps 0 --json results/gguf-llama/cpu.json
"""

from __future__ import annotations

import argparse
import ctypes
import json
import shlex
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import torch
from torch import Tensor, nn

import paretorch as pt
from paretorch.errors import PareWarning
from paretorch.training.folder import environment
from paretorch.workflows.shrink import shrink_network

FORMATS = {"Q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, "Q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0,
           "TQ2_0": llama_cpp.LLAMA_FTYPE_MOSTLY_TQ2_0}  # fmt: skip
BATCH, LENGTH = 4, 64


def build(folder: Path) -> nn.Module:
    from transformers import LlamaForCausalLM

    model: nn.Module = LlamaForCausalLM.from_pretrained(folder)
    model.config.use_cache = False
    return model.eval()


class Parts:
    """Parts of random rows, the same at each pass."""

    def __init__(self, rows: Tensor, seed: int, count: int = 64) -> None:
        self.rows, self.seed, self.count = rows, seed, count

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        generator = torch.Generator().manual_seed(self.seed)
        for _ in range(self.count):
            chosen = torch.randint(len(self.rows), (BATCH,), generator=generator)
            at = int(torch.randint(0, self.rows.shape[1] - LENGTH + 1, (1,), generator=generator))
            yield {"input_ids": self.rows[chosen, at : at + LENGTH]}


@torch.no_grad()
def torch_logits(model: nn.Module, rows: Tensor) -> Tensor:
    return torch.cat([model(input_ids=row[None]).logits for row in rows])


def file_logits(path: Path, rows: Tensor, threads: int) -> Tensor:
    length = rows.shape[1]
    engine = llama_cpp.Llama(
        str(path),
        n_ctx=length,
        n_batch=length,
        n_threads=threads,
        n_threads_batch=threads,
        logits_all=True,
        verbose=False,
    )
    found = []
    for row in rows:
        engine.reset()
        engine.eval(row.tolist())
        found.append(torch.from_numpy(np.array(engine.scores[:length])))
    engine.close()
    return torch.stack(found)


def loss(logits: Tensor, rows: Tensor) -> float:
    """Nats per token."""
    return float(nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), rows[:, 1:].flatten()))


def quantize_by_llama_cpp(dense: Path, path: Path, kind: int) -> None:
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype, options.pure, options.nthread = kind, True, 1
    if llama_cpp.llama_model_quantize(str(dense).encode(), str(path).encode(), ctypes.byref(options)) != 0:
        raise SystemExit(f"llama.cpp cannot quantize to {path.name}")


def measure(model: nn.Module, path: Path, rows: Tensor, threads: int) -> dict[str, Any]:
    ours, theirs = torch_logits(model, rows), file_logits(path, rows, threads)
    apart = float((ours - theirs).abs().max() / ours.abs().max())
    return {
        "bytes": path.stat().st_size,
        "loss_torch": loss(ours, rows),
        "loss_llama_cpp": loss(theirs, rows),
        "largest_difference": apart,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--steps", type=int, default=0, help="of pt.shrink behind its rounding by second order; -1: leave it out"
    )
    parser.add_argument("--held", type=int, default=24, help="rows that are held out, the last ones")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the rows here too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    ids = torch.load(options.folder / "ids.pt")
    trained, held = ids[: -options.held], ids[-options.held :]
    dense = build(options.folder)
    weights = sum(p.numel() for p in dense.parameters())
    rows: list[dict[str, Any]] = []

    def add(row: dict[str, Any]) -> None:
        rows.append(row)
        print(json.dumps(row), flush=True)
        if options.json is not None:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            command = f"python benchmarks/gguf_llama.py {shlex.join(sys.argv[1:])}"
            about = {**environment(torch.device("cpu")), "command": command, "llama_cpp": llama_cpp.__version__}
            record = {**about, "weights": weights, "held_tokens": held.numel(), "rows": rows}
            options.json.write_text(json.dumps(record, indent=1) + "\n")

    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore", PareWarning)
        folder = Path(name)
        whole = pt.export(dense, folder / "dense.gguf", runtime="gguf:Q8_0")
        add({"way": "dense, fp32", **measure(dense, whole, held, options.threads)})
        for form, kind in FORMATS.items():
            torch.manual_seed(options.seed)
            runtime = f"gguf:{form}"
            theirs = folder / f"llama-cpp-{form}.gguf"
            quantize_by_llama_cpp(whole, theirs, kind)
            own = loss(file_logits(theirs, held, options.threads), held)
            add({"way": "llama.cpp's quantizer", "format": form, "bytes": theirs.stat().st_size, "loss_llama_cpp": own})
            small = pt.compress(build(options.folder), pt.SMOL(), steps=1, runtime=runtime).finalize().eval()
            path = pt.export(small, folder / "rounded.gguf", runtime=runtime)
            add({"way": "rounded", "format": form, **measure(small, path, held, options.threads)})
            if options.steps >= 0:
                found = shrink_network(
                    dense, Parts(trained, options.seed), runtime=runtime, steps=options.steps, progress="quiet"
                )
                small = found.model.eval()
                path = pt.export(small, folder / "shrunk.gguf", runtime=runtime)
                about = {
                    "way": "shrunk",
                    "format": form,
                    "steps": options.steps,
                    "trained": found.record.get("trained", False),
                }
                add({**about, **measure(small, path, held, options.threads)})


if __name__ == "__main__":
    main()
