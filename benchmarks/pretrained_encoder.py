"""Claim: which pruning rule keeps most of a trained sentence encoder, within about a hundred steps on a CPU.

All weights of the encoder's linear layers are pruned together to `--target` zeros; embeddings, norms and biases stay. The dense encoder is the teacher: the loss is
1 − cosine, of each token's output and of the mean over tokens. What is reported is the mean cosine between the sentence embeddings of the pruned and the dense encoder on
sentences that no training sees (`--held`). Wanda, SparseGPT and magnitude drop at once and train what is left; the others search for 70 % of the steps. Each method has the
best of `--rates`, chosen with the first seed on the last 500 sentences of `--text`, which are not trained on.

    python benchmarks/pretrained_encoder.py --model FOLDER --text train.en --held val.en --seeds 0,1,2 --json encoder.json

FOLDER is a folder of transformers' `save_pretrained` with a tokenizer, such as all-MiniLM-L6-v2; the texts have one sentence per line.
"""

import argparse
import json
import math
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
from paretorch.methods.sparsity.rivals import ST3, GradualMagnitude, MagnitudePruning
from paretorch.training.folder import environment
from paretorch.workflows.posttraining.gptq import sparsegpt, wanda

TUNING = 500  # sentences that choose the rate
EMBEDDINGS = ("*embeddings*", "pooler*")
Batch = dict[str, Tensor]


class Bed:
    """The trained encoder and its sentences."""

    def __init__(self, options: argparse.Namespace) -> None:
        from transformers import AutoModel, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(options.model)
        self.fresh: Callable[[], nn.Module] = lambda: AutoModel.from_pretrained(options.model, dtype=torch.float32)
        self.teacher = self.fresh().eval()
        text, self.held = (path.read_text().splitlines() for path in (options.text, options.held))
        self.train, self.tuning = text[:-TUNING], text[-TUNING:]

    def tokens(self, sentences: list[str]) -> Batch:
        return dict(self.tokenizer(sentences, padding=True, truncation=True, max_length=64, return_tensors="pt"))

    def batches(self, seed: int, size: int = 16) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(seed)
        while True:
            rows = torch.randint(len(self.train), (size,), generator=generator).tolist()
            yield self.tokens([self.train[row] for row in rows])

    @torch.no_grad()
    def cosine(self, model: nn.Module, sentences: list[str]) -> float:
        """The mean cosine between embeddings of the model and of the dense encoder."""
        was = model.training
        model.eval()
        found = []
        for start in range(0, len(sentences), 100):
            batch = self.tokens(sentences[start : start + 100])
            found.append(F.cosine_similarity(embed(model, batch)[1], embed(self.teacher, batch)[1]))
        model.train(was)
        return float(torch.cat(found).mean())


def embed(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Outputs of all tokens that are not padding, and their mean per sentence."""
    outputs, mask = model(**batch).last_hidden_state, batch["attention_mask"].bool()
    weights = mask[:, :, None].float()
    return outputs[mask], (outputs * weights).sum(1) / weights.sum(1)


def loss_of(model: nn.Module, teacher: nn.Module, batch: Batch) -> Tensor:
    with torch.no_grad():
        wanted = embed(teacher, batch)
    return sum(
        (1.0 - F.cosine_similarity(a, b).mean() for a, b in zip(embed(model, batch), wanted, strict=True)),
        torch.zeros(()),
    )


def at_once(rule: Callable[..., nn.Module] | None) -> Callable[[Bed, float, int], nn.Module]:
    def build(bed: Bed, target: float, seed: int) -> nn.Module:
        model = bed.fresh()
        if rule is None:
            return model
        return rule(model.eval(), islice(bed.batches(seed + 100), 32), target=target, exclude=EMBEDDINGS)

    return build


def methods(target: float) -> dict[str, tuple[Callable[[Bed, float, int], nn.Module], Method, float]]:
    """How each starts, its method, and the share of its steps that search; zeros that are there are the least magnitudes."""
    keep = MagnitudePruning(target=target, exclude=EMBEDDINGS)
    return {
        "continuous": (at_once(None), pt.ContinuousSparsification(target=target, exclude=EMBEDDINGS), 0.7),
        "gradual": (at_once(None), GradualMagnitude(target=target, every=2, exclude=EMBEDDINGS), 0.7),
        "st3": (at_once(None), ST3(target=target, exclude=EMBEDDINGS), 0.7),
        "magnitude": (at_once(None), keep, 0.0),
        "wanda": (at_once(wanda), keep, 0.0),
        "sparsegpt": (at_once(sparsegpt), keep, 0.0),
    }


def run(bed: Bed, name: str, options: argparse.Namespace, lr: float, seed: int) -> tuple[nn.Module, dict[str, Any]]:
    build, method, search = methods(options.target)[name]
    torch.manual_seed(seed)
    start = time.time()
    model = build(bed, options.target, seed).eval()  # dropout is off: the teacher has none
    length = round(search * options.steps)
    plan = pt.compress(model, method, steps=max(length, 1), seed=seed)
    if length == 0:
        plan.harden()
    row: dict[str, Any] = {"method": name, "lr": lr, "seed": seed, "started": bed.cosine(model, bed.tuning)}
    optimizer = torch.optim.AdamW(plan.param_groups(weight_decay=0.0), lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: _cosine(i, options.steps))
    for step, batch in zip(range(1, options.steps + 1), bed.batches(seed), strict=False):
        loss_of(model, bed.teacher, batch).backward()
        optimizer.step()
        if not plan.is_hard:
            plan.step()
        optimizer.zero_grad()
        schedule.step()
        if step == length:
            row["soft"] = bed.cosine(model, bed.tuning)
            plan.harden(optimizer)
            row["hard"] = bed.cosine(model, bed.tuning)
    small = plan.finalize()
    return small, {
        **row,
        "zeros": zeros_of(small),
        "tuning": bed.cosine(small, bed.tuning),
        "seconds": round(time.time() - start, 1),
    }


def zeros_of(model: nn.Module) -> float:
    own = [m.weight for name, m in model.named_modules() if isinstance(m, nn.Linear) and not name.startswith("pooler")]
    return sum(int((one == 0).sum()) for one in own) / sum(one.numel() for one in own)


def _cosine(step: int, steps: int) -> float:
    return min(1.0, (step + 1) / 10) * 0.5 * (1.0 + math.cos(math.pi * step / steps))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--held", type=Path, required=True)
    parser.add_argument("--target", type=float, default=0.9)
    parser.add_argument("--steps", type=int, default=110)
    parser.add_argument("--only", default=",".join(methods(0.9)))
    parser.add_argument("--rates", type=lambda text: [float(one) for one in text.split(",")], default=[3e-4, 1e-3])
    parser.add_argument("--seeds", type=lambda text: [int(one) for one in text.split(",")], default=[0])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    bed, rows = Bed(options), []
    for name in options.only.split(","):
        tried = [run(bed, name, options, lr, options.seeds[0]) for lr in options.rates]
        best = max(tried, key=lambda one: one[1]["tuning"])
        found = [best, *(run(bed, name, options, best[1]["lr"], seed) for seed in options.seeds[1:])]
        rows += [{**row, "held": None} for _, row in tried if row is not best[1]]
        rows += [{**row, "held": bed.cosine(model, bed.held)} for model, row in found]
        for row in rows[-len(options.rates) - len(options.seeds) + 1 :]:
            print(json.dumps(row), flush=True)
        if options.json:
            about = {"environment": environment(torch.device("cpu")), "steps": options.steps, "target": options.target}
            options.json.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
