"""Claim: a language model of 15 M weights keeps its loss in a ninth to a twenty-fifth of its bytes, with or without training.

stories15M (60.8 MB in fp32) writes stories itself, sampled at temperature 1 from id 1. They train, choose the rate and test what was made of
it, with the network as its own teacher (KL divergence): 800 steps of search and 400 after `harden`, 64 × 223 tokens each, AdamW, one cosine.

    smol72 smol40 smol25         SMOL by channel to 7.2, 4.0 and 2.5 MB
    lsq4 lsq3 lsq2               LSQ by channel, the rival
    shrink72 shrink40 shrink25   `pt.shrink` with 1,200 steps to the same bytes
    gptq4 gptq3                  GPTQ without training: 4 bits in groups of 96, 3 bits in groups of 32
    post4 post3                  `pt.shrink` without training, at the bytes of gptq4 and gptq3: their file by `pt.save` or their codes, the smaller one

Losses are nats per token, of the file read again: `tuning`, of 256 stories by which a rate may be chosen, and `held`, of 512 that nothing else sees.

    python benchmarks/pretrained_llama.py pack --network FOLDER --pieces carry
    python benchmarks/pretrained_llama.py write --pieces carry --data DATA --stories 16000
    python benchmarks/pretrained_llama.py run --data DATA --output rows.jsonl --rows dense,gptq4,post4,smol40,lsq3 --rates 1e-4,3e-4
    python benchmarks/pretrained_llama.py run --smoke --output rows.jsonl
"""

import argparse
import json
import math
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import paretorch as pt
from paretorch.core.method import Method
from paretorch.methods.precision.rivals import LSQ
from paretorch.support.text import parse_bytes
from paretorch.training.folder import environment
from paretorch.workflows.posttraining.gptq import gptq, packed_bytes
from paretorch.workflows.shrink import shrink_network

LENGTH, TUNING, HELD = 224, 256, 512
BUDGETS = {"72": "7.2 MB", "40": "4.0 MB", "25": "2.5 MB"}
GPTQ = {"gptq4": (4, 96), "gptq3": (3, 32)}
SIZES = {
    "hidden_size": 288,
    "intermediate_size": 768,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "vocab_size": 32000,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5,
}
SMALL = {**SIZES, "hidden_size": 96, "intermediate_size": 96, "num_hidden_layers": 1, "vocab_size": 64}


def build(sizes: dict[str, Any], state: dict[str, Tensor] | None) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    model: nn.Module = LlamaForCausalLM(LlamaConfig(**sizes))
    if state is not None:
        model.load_state_dict(state, strict=False)
        model.tie_weights()  # type: ignore[operator]
    return model.eval()


def pack(options: argparse.Namespace) -> None:
    """The network in bfloat16, which travels in half of the bytes."""
    from transformers import LlamaForCausalLM

    source = LlamaForCausalLM.from_pretrained(options.network)
    sizes = {name: getattr(source.config, name) for name in SIZES}
    state = {
        key: value.detach().bfloat16().clone() for key, value in source.state_dict().items() if "lm_head" not in key
    }
    options.pieces.mkdir(parents=True, exist_ok=True)
    torch.save({"sizes": sizes, "state": state}, options.pieces / "llama.pt")
    print(f"{options.pieces / 'llama.pt'}: {(options.pieces / 'llama.pt').stat().st_size:,} bytes")


@torch.no_grad()
def write_stories(model: nn.Module, count: int, device: torch.device, batch: int = 2000) -> Tensor:
    """What the network samples from id 1."""
    generator, found = torch.Generator(device).manual_seed(0), []
    for start in range(0, count, batch):
        ids = torch.ones(min(batch, count - start), 1, dtype=torch.long, device=device)
        cache: Any = None
        while ids.shape[1] < LENGTH:
            out = model(input_ids=ids[:, -1:], past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            ids = torch.cat([ids, torch.multinomial(out.logits[:, -1].softmax(-1), 1, generator=generator)], 1)
        found.append(ids.cpu())
        print(f"{sum(map(len, found))} of {count} stories", flush=True)
    return torch.cat(found)


def write(options: argparse.Namespace) -> None:
    content = torch.load(options.pieces / "llama.pt", weights_only=True)
    state = {key: value.float() for key, value in content["state"].items()}
    device = device_here()
    ids = write_stories(build(content["sizes"], state).to(device), options.stories, device)
    torch.save({"sizes": content["sizes"], "state": state, "ids": ids.to(torch.int32)}, options.data)


def device_here() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Bed:
    """The trained network and its stories."""

    def __init__(self, content: dict[str, Any], device: torch.device, batch: int) -> None:
        self._sizes, self._state, self.device, self.batch = content["sizes"], content["state"], device, batch
        ids = content["ids"].long()
        self.held, self.tuning, self.trained = ids[:HELD], ids[HELD : HELD + TUNING], ids[HELD + TUNING :]
        self.teacher = self.fresh().requires_grad_(False)

    def fresh(self) -> nn.Module:
        return build({**self._sizes, "use_cache": False}, self._state).to(self.device)

    def batches(self, seed: int) -> Iterator[dict[str, Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        while True:
            rows = torch.randint(len(self.trained), (self.batch,), generator=generator)
            yield {"input_ids": self.trained[rows].to(self.device)}

    def cast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda")

    @torch.no_grad()
    def loss(self, model: nn.Module, rows: Tensor) -> float:
        """Nats per token."""
        was, total = model.training, 0.0
        model.eval()
        for part in rows.to(self.device).split(64):
            logits = model(input_ids=part).logits[:, :-1].float()
            total += float(F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), reduction="sum"))
        model.train(was)
        return total / rows[:, 1:].numel()

    def measured(self, model: nn.Module) -> dict[str, Any]:
        """Bytes and losses of the file."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.pare"
            pt.save(model, path)
            size, again = path.stat().st_size, self.fresh()
            pt.load(path, into=again)
        return {"bytes": size, "tuning": self.loss(again, self.tuning), "held": self.loss(again, self.held)}


def train(
    bed: Bed, method: Method, search: int, tune: int, rate: float, seed: int, budget: str | None
) -> tuple[nn.Module, dict[str, Any]]:
    """Search, round, tune."""
    torch.manual_seed(seed)
    model, total, told = bed.fresh().train(), search + tune, {}
    plan = pt.compress(model, method, steps=search, budget=budget, seed=seed)
    optimizer = torch.optim.AdamW(plan.param_groups(weight_decay=0.0), rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 0.5 + 0.5 * math.cos(math.pi * i / total))
    for step, batch in zip(range(1, total + 1), bed.batches(seed + 1), strict=False):
        with bed.cast():
            with torch.no_grad():
                wanted = bed.teacher(**batch).logits
            logits = model(**batch).logits
        own, target = (one.float().flatten(0, 1).log_softmax(-1) for one in (logits, wanted))
        F.kl_div(own, target, log_target=True, reduction="batchmean").backward()
        optimizer.step()
        if not plan.is_hard:
            plan.step()
        optimizer.zero_grad()
        schedule.step()
        if step == search:
            told["before_tuning"] = bed.loss(model, bed.tuning)
            plan.harden(optimizer)
            told["after_tuning"] = bed.loss(model, bed.tuning)
    return plan.finalize(), told


def row_of(bed: Bed, name: str, rate: float | None, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One row: what was made, in how many seconds."""
    start, told = time.perf_counter(), {}
    share = options.share
    if name == "dense":
        model = bed.fresh()
        told["fp32_bytes"] = 4 * sum(one.numel() for one in model.parameters())
    elif name in GPTQ:
        bits, group = GPTQ[name]
        model = gptq(bed.fresh(), list(islice(bed.batches(seed), options.calibration)), bits=bits, group=group)
        told["packed_bytes"] = packed_bytes(bed.fresh(), bits, group)
    elif name.startswith("post"):
        rival = row_of(bed, name.replace("post", "gptq"), None, seed, options)
        budget = min(rival["bytes"], rival["packed_bytes"])
        model = shrink_network(bed.fresh(), bed.batches(seed), budget=budget, steps=0).model
    elif name.startswith("shrink"):
        budget = int(parse_bytes(BUDGETS[name[-2:]]) * share)
        model = shrink_network(bed.fresh(), bed.batches(seed), budget=budget, steps=options.search + options.tune).model
    else:
        method: Method = (
            LSQ(bits=int(name[-1]), group="channel") if name.startswith("lsq") else pt.SMOL(group="channel")
        )
        budget_text = None if name.startswith("lsq") else f"{int(parse_bytes(BUDGETS[name[-2:]]) * share)}"
        assert rate is not None
        model, told = train(bed, method, options.search, options.tune, rate, seed, budget_text)
    return {
        "row": name,
        "rate": rate,
        "seed": seed,
        **told,
        **bed.measured(model),
        "seconds": round(time.perf_counter() - start, 1),
    }


def smoke_content() -> dict[str, Any]:
    torch.manual_seed(0)
    model = build(SMALL, None)
    ids = torch.randint(2, 64, (HELD + TUNING + 64, 16), dtype=torch.int32)
    return {"sizes": SMALL, "state": model.state_dict(), "ids": ids}


def run(options: argparse.Namespace) -> None:
    device = device_here()
    if options.smoke:
        options.search, options.tune, options.calibration, options.share = 4, 2, 2, 0.004
    content = smoke_content() if options.smoke else torch.load(options.data, weights_only=True)
    bed = Bed(content, device, 4 if options.smoke else options.batch)
    told = {**environment(device), "command": " ".join(["python", *sys.argv])}
    for name in options.rows.split(","):
        rates = options.rates if name.startswith(("smol", "lsq")) else [None]
        for rate in rates:
            for seed in options.seeds:
                row = {**row_of(bed, name, rate, seed, options), "smoke": options.smoke}
                with options.output.open("a") as file:
                    file.write(json.dumps({**row, "environment": told}) + "\n")
                print(row, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    every: dict[str, Callable[[argparse.Namespace], None]] = {"pack": pack, "write": write, "run": run}
    parts = {name: commands.add_parser(name) for name in every}
    for name, part in parts.items():
        part.set_defaults(begin=every[name])
    parts["pack"].add_argument("--network", type=Path, required=True, help="a folder that transformers can load")
    for name in ("pack", "write"):
        parts[name].add_argument("--pieces", type=Path, default=Path("carry"))
    parts["write"].add_argument("--stories", type=int, default=16_000)
    for name in ("write", "run"):
        parts[name].add_argument("--data", type=Path, default=Path("stories.pt"))
    own = parts["run"].add_argument
    own("--rows", default="dense,gptq4,post4,smol40,lsq3,shrink40")
    own("--rates", type=lambda text: [float(one) for one in text.split(",")], default=[3e-4])
    own("--seeds", type=lambda text: [int(one) for one in text.split(",")], default=[0])
    own("--search", type=int, default=800)
    own("--tune", type=int, default=400)
    own("--batch", type=int, default=64)
    own("--calibration", type=int, default=8, help="batches that GPTQ sees")
    own("--share", type=float, default=1.0, help="of the budgets, for other networks")
    own("--output", type=Path, required=True)
    own("--smoke", action="store_true", help="a tiny network and few steps, to see that all rows run")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    options.begin(options)


if __name__ == "__main__":
    main()
