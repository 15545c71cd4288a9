"""Claim: at equal bytes on disk, SMOL with real steps by channel has a lower loss than LSQ by channel on a trained language model.

A small Llama (7.05 M weights with a trimmed vocabulary, tied embedding) is its own teacher: 150 steps until `harden` and 50 after it, 4 × 64
tokens each, AdamW with a cosine, KL divergence to the dense network's outputs. Printed and recorded are the bytes of the saved file and the
loss in nats on 100 held-out rows, for each method, rate and seed, and the loss on 32 other rows ("tuning"), by which a rate may be chosen.

The folder is that of `benchmarks/story_bed.py`: a network that transformers can load, and ids.pt, a tensor of token ids with one row per text; rows 700 to 731 are
for tuning, those from 732 on are held out.

    python benchmarks/pretrained_precision.py --llama FOLDER --cases smol:2.87,lsq:4 --rates 1.5e-5,5e-5 --json results/pretrained-precision/cpu.json
"""

import argparse
import itertools
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import paretorch as pt
from paretorch.methods.precision.rivals import LSQ, Uniform
from paretorch.training.folder import environment

_TRAINED, _HELD = 700, 732  # rows
_BATCH, _LENGTH = 4, 64


def build(folder: Path) -> nn.Module:
    """The trained network."""
    from transformers import LlamaForCausalLM

    model: nn.Module = LlamaForCausalLM.from_pretrained(folder)
    model.config.use_cache = False
    return model.eval()


def batches(ids: Tensor, seed: int) -> Iterator[Tensor]:
    """Parts of random rows."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        rows = torch.randint(len(ids), (_BATCH,), generator=generator)
        at = int(torch.randint(0, ids.shape[1] - _LENGTH + 1, (1,), generator=generator))
        yield ids[rows, at : at + _LENGTH]


@torch.no_grad()
def evaluate(model: nn.Module, rows: Tensor) -> float:
    """Nats per token."""
    model.eval()
    total, count = 0.0, 0
    for part in rows.split(20):
        logits = model(input_ids=part).logits[:, :-1]
        total += float(nn.functional.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), reduction="sum"))
        count += part[:, 1:].numel()
    return total / count


def divergence(student: Tensor, teacher: Tensor) -> Tensor:
    """KL divergence per token."""
    own, wanted = (one.flatten(0, -2).log_softmax(-1) for one in (student, teacher))
    return nn.functional.kl_div(own, wanted, log_target=True, reduction="batchmean")


def method_of(name: str, bits: float) -> Any:
    """The method of a case, by channel."""
    if name == "lsq":
        return LSQ(bits=int(bits), group="channel")
    if name == "uniform":
        return Uniform(bits=int(bits))
    return pt.SMOL(target_bits=bits, group="channel")


def run(options: argparse.Namespace, name: str, bits: float, lr: float, seed: int) -> dict[str, Any]:
    """Train, save and measure one case."""
    ids = torch.load(options.llama / "ids.pt")
    model, teacher = build(options.llama).train(), build(options.llama)
    total, begin = options.search + options.tune, time.time()
    plan = pt.compress(model, method_of(name, bits), steps=options.search)
    optimizer = torch.optim.AdamW(plan.param_groups(), lr=lr)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 0.5 + 0.5 * math.cos(math.pi * i / total))
    for step, x in zip(range(total), batches(ids[:_TRAINED], seed), strict=False):
        if step == options.search:
            plan.harden(optimizer)
        with torch.no_grad():
            wanted = teacher(input_ids=x).logits
        divergence(model(input_ids=x).logits, wanted).backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
        rate.step()
    counted = plan.metrics().get("bits")
    small = plan.finalize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pare"
        pt.save(small, path)
        size = path.stat().st_size
    return {
        "method": name,
        "asked_bits": bits,
        "bits": counted,
        "lr": lr,
        "seed": seed,
        "bytes": size,
        "tuning_nats": evaluate(small, ids[_TRAINED:_HELD]),
        "nats": evaluate(small, ids[_HELD : _HELD + 100]),
        "seconds": round(time.time() - begin),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama", type=Path, required=True, help="folder of the network, with ids.pt")
    parser.add_argument("--cases", default="smol:2.8,lsq:4,smol:3.33,lsq:5,smol:3.85,lsq:6", help="method:bits, …")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--search", type=int, default=150, help="steps until harden")
    parser.add_argument("--tune", type=int, default=50, help="steps after it")
    parser.add_argument("--rates", type=lambda text: [float(one) for one in text.split(",")], default=[5e-5])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    command = " ".join(["python", *sys.argv]).replace(str(options.llama), "FOLDER")
    ids = torch.load(options.llama / "ids.pt")
    dense = evaluate(build(options.llama), ids[_HELD : _HELD + 100])
    print(f"dense: {dense:.4f} nats")
    rows: list[dict[str, Any]] = []
    cases = [case.partition(":") for case in options.cases.split(",")]
    for seed in range(options.seeds):
        for (name, _, bits), lr in itertools.product(cases, options.rates):
            rows.append(run(options, name, float(bits), lr, seed))
            print(
                "{method} {asked_bits:g} bits, rate {lr:g}, seed {seed}: {nats:.4f} nats in {bytes:,} bytes".format(
                    **rows[-1]
                ),
                flush=True,
            )
            if options.json:
                told = {**environment(torch.device("cpu")), "command": command, "hardware": "two CPU cores"}
                found = {"command": command, "environment": told, "dense_nats": dense, "rows": rows}
                options.json.parent.mkdir(parents=True, exist_ok=True)
                options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
