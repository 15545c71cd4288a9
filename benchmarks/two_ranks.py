"""Claim: two ranks take the steps of one; what differs is the last bit of sums, which batch norm and rounding magnify.

    python benchmarks/two_ranks.py --out results/two-ranks/cpu.json

One process, two ranks (DDP, and FSDP2 by `--shard`), and one process whose first weights are off by one part in ten million train the same
ResNet-20 with CS and SMOL on the digits, in float32 and in float64. If two ranks took other steps than one, float64 would show it as
float32 does; if they only add up in another order, their losses are as far apart as the perturbed run's in float32, and agree to many more
digits in float64. Decisions, prices and the noise are float32 in both; float64 runs lie contiguous, as FSDP2 wants it, so that the
controllers' sums over decisions have one order. A smaller network without batch norm is trained beside it. After the search decisions are
rounded, and five more steps are taken.
"""

import argparse
import itertools
import json
import os
import platform
import shlex
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paretorch import zoo
from paretorch.errors import UndecidedWarning
from paretorch.support.sharded import whole
from paretorch.training.compression import attach
from paretorch.training.fit import Trainer
from paretorch.training.folder import RunFolder
from paretorch.training.launch import FollowerFolder, RankTrainer
from paretorch.training.ranks import Ranks, joined, over_all_ranks
from paretorch.training.recipe import Recipe
from paretorch.training.recipe_values import recipe_from
from paretorch.training.runtime import Runtime
from paretorch.training.tasks import Batch, derive_seed, shuffled

BATCH, EPOCHS, FINETUNE = 240, 8, 1
LOOKS = (1, 5, 10, 20, 40)  # steps after which weights and decisions are compared
PERTURBED = {"float32": 1e-7, "float64": 1e-16}
HOWS = ("one", "perturbed", "ddp", "fsdp2")
KINDS = ("float32", "float64")
NETWORKS = ("resnet20", "plain")


class Digits:
    """The digits, all computed in one dtype."""

    tallies, splits = ("accuracy",), True

    def __init__(self, dtype: torch.dtype, seed: int) -> None:
        images = zoo.data.load("digits")
        self._train, self._test = ((self._scaled(x, dtype), y) for x, y in (images.train, images.test))
        self._seed, self.steps = seed, len(self._train[1]) // BATCH

    def _scaled(self, pixels: Tensor, dtype: torch.dtype) -> Tensor:
        return (pixels.to(dtype) / 255 - 0.3) / 0.4

    def epoch(self, number: int) -> Batch:
        pixels, labels = self._train
        order = shuffled(len(labels), derive_seed(self._seed, number, 0))[: self.steps * BATCH]
        return pixels[order].view(self.steps, BATCH, *pixels.shape[1:]), labels[order].view(self.steps, BATCH)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
        pixels, labels = batch
        logits = model(pixels)
        loss = F.cross_entropy(logits, labels)
        LOSSES.append(loss.detach().double())
        return loss, ((logits.detach().argmax(1) == labels).float().mean(),)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        with torch.no_grad():
            logits = model(self._test[0])
        right = (logits.argmax(1) == self._test[1]).double().mean()
        return {"test_loss": float(F.cross_entropy(logits, self._test[1])), "test_accuracy": float(right)}

    def example(self) -> Tensor:
        return self._test[0][:2]


LOSSES: list[Tensor] = []


def build(network: str) -> nn.Module:
    if network == "plain":
        layers = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU()]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 10))
    return zoo.build(network, channels=1, classes=10)


def recipe_of(seed: int) -> Recipe:
    own = {
        "network": "resnet20",
        "data": "digits",
        "batch": BATCH,
        "epochs": EPOCHS,
        "finetune": FINETUNE,
        "seed": seed,
    }
    return recipe_from({**own, "optimizer": "sgd", "lr": 0.1, "pruning": "cs", "sparsity": 0.8, "bits": 3})


@dataclass(frozen=True)
class Case:
    """One run."""

    network: str
    kind: str
    how: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.network}-{self.kind}-{self.how}-{self.seed}"


def run(case: Case, folder: Path, ranks: Ranks) -> None:
    """Train, and leave the losses and some states in the folder."""
    LOSSES.clear()
    recipe, dtype, device = recipe_of(case.seed), getattr(torch, case.kind), torch.device("cpu")
    task = Digits(dtype, case.seed)
    torch.manual_seed(case.seed)
    model = build(case.network).to(dtype)
    if case.how == "perturbed":
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + PERTURBED[case.kind] * torch.randn_like(parameter))
    if case.kind == "float32":
        model = model.to(memory_format=torch.channels_last)  # as `prepare` does
    plan = attach(model, recipe, steps=EPOCHS * task.steps, example=task.example())
    assert plan is not None
    out = folder / case.name
    here: Any = RunFolder(out, recipe) if ranks.is_first else FollowerFolder(out, b"")
    states: dict[int, dict[str, Tensor]] = {}

    def look(done: int) -> None:
        if done in LOOKS:
            states[done] = {name: whole(one).double().clone() for name, one in model.state_dict().items()}

    options: dict[str, Any] = {
        "plan": plan,
        "runtime": Runtime(device="cpu", progress="quiet", checkpoint_epochs=1000),
        "device": device,
    }
    with over_all_ranks(model, ranks):
        if ranks.count > 1:
            trainer: Trainer = RankTrainer(
                model, task, recipe, here, ranks=ranks, shard=case.how == "fsdp2", resume=False, **options
            )
        else:
            trainer = Trainer(model, task, recipe, here, **options)
        trainer.after_step = look
        last = trainer.run()
    found = torch.stack(LOSSES)
    losses = ranks.mean(found).tolist()
    final = {name: whole(one).double() for name, one in model.state_dict().items()}
    if ranks.is_first:
        torch.save({"losses": losses, "states": states, "final": final, "last": last}, folder / f"{case.name}.pt")


def work(folder: Path, cases: list[Case], ports: list[int], rank: int) -> None:
    """One of two ranks: the cases, one after the other."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UndecidedWarning)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    for case, port in zip(cases, ports, strict=True):
        os.environ["MASTER_PORT"] = str(port)
        with joined(torch.device("cpu")) as ranks:
            run(case, folder, ranks)


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def run_all(folder: Path, cases: list[Case]) -> None:
    """Those of one process here, those of two ranks in two processes that take all of them in turn."""
    shared = [case for case in cases if case.how in ("ddp", "fsdp2")]
    given = json.dumps([list(case.__dict__.values()) for case in shared])
    words = [sys.executable, __file__, "--worker", str(folder), given, json.dumps(free_ports(len(shared)))]
    processes = [subprocess.Popen([*words, str(rank)]) for rank in range(2)]
    for process in processes:
        if process.wait():
            raise SystemExit("a rank failed")
    for case in cases:
        if case not in shared:
            run(case, folder, Ranks())


def bits_and_masks(one: dict[str, Tensor], other: dict[str, Tensor]) -> dict[str, int]:
    """How many of the decided weights have another mask, or another number of bits, once decisions are rounded."""
    found = dict.fromkeys(("masks", "other_masks", "bits", "other_bits"), 0)
    for name, value in one.items():
        other_value = other[name]
        if name.endswith("sparsity.s"):
            found["masks"] += value.numel()
            found["other_masks"] += int(((value > 0) != (other_value > 0)).sum())
        elif name.endswith("precision.s"):
            found["bits"] += value.numel()
            found["other_bits"] += int((value.round() != other_value.round()).sum())
    return found


def largest_gap(one: dict[str, Tensor], other: dict[str, Tensor], part: str) -> float:
    """The largest difference in tensors with this in their name, over the largest value of each."""
    gaps = [
        float((value - other[name]).abs().max() / value.abs().max().clamp_min(1e-30))
        for name, value in one.items()
        if part in name and value.numel()
    ]
    return max(gaps, default=0.0)


def compare(folder: Path, case: Case) -> dict[str, Any]:
    """How far a run is from that of one process."""
    base, own = (torch.load(folder / f"{each.name}.pt") for each in (replace(case, how="one"), case))
    gaps = [abs(a - b) / abs(a) for a, b in zip(base["losses"], own["losses"], strict=True)]
    states = {step: (base["states"][step], own["states"][step]) for step in base["states"]}
    return {
        **case.__dict__,
        "loss_gaps": gaps,
        "decision_gaps": {step: largest_gap(*pair, "paretorch_weight") for step, pair in states.items()},
        "controller_gaps": {
            step: max(largest_gap(*pair, one) for one in ("paretorch_sparsity", "paretorch_precision"))
            for step, pair in states.items()
        },
        "rounding": bits_and_masks(base["final"], own["final"]),
        "one": base["last"],
        "end": own["last"],
    }


_SHOWN = (1, 10, 20, 40)


def show(row: dict[str, Any]) -> str:
    """A line for a reader."""
    gaps = "  ".join(f"{row['loss_gaps'][step - 1]:.0e}" for step in _SHOWN)
    rounding, one, end = row["rounding"], row["one"], row["end"]
    masks, bits = (100 * rounding[f"other_{kind}"] / rounding[kind] for kind in ("masks", "bits"))
    words = f"{row['network']:>9} {row['kind']} {row['how']:>9}: {gaps}   other masks {masks:.2f} %, bits {bits:.2f} %"
    return f"{words}   loss at the end {one['test_loss']:.3f}, {end['test_loss']:.3f}"


def holds(rows: list[dict[str, Any]]) -> bool:
    """In float64 ranks and one process agree for twenty steps to ten digits, and round every decision alike at the end."""
    wide = [row for row in rows if row["kind"] == "float64" and row["how"] in ("ddp", "fsdp2")]
    alike = all(row["rounding"]["other_masks"] == row["rounding"]["other_bits"] == 0 for row in wide)
    return bool(wide) and alike and all(max(row["loss_gaps"][:20]) < 1e-10 for row in wide)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--network", choices=NETWORKS, action="append")
    parser.add_argument("--show", type=Path, help="Run nothing; print what this file of results says.")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    rows = json.loads(asked.show.read_text())["rows"] if asked.show else measure(asked.network or NETWORKS, asked.seed)
    print(f"Differences of the loss from that of one process after {', '.join(map(str, _SHOWN))} steps:")
    for row in rows:
        print(show(row))
    print(f"claim {'holds' if holds(rows) else 'FAILS'}")
    if asked.out is not None:
        content = {
            "command": shlex.join(["python", *sys.argv]),
            "hardware": platform.processor() or platform.machine(),
            "torch": torch.__version__,
            "rows": rows,
        }
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(json.dumps(content, indent=1) + "\n")


def measure(networks: Sequence[str], seed: int) -> list[dict[str, Any]]:
    """Run all cases, and compare them with those of one process."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UndecidedWarning)  # so short a search leaves masks undecided
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        cases = [Case(*one, seed) for one in itertools.product(networks, KINDS, HOWS)]
        run_all(folder, cases)
        return [compare(folder, case) for case in cases if case.how != "one"]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        place, given, ports, rank = sys.argv[2:]
        work(Path(place), [Case(*one) for one in json.loads(given)], json.loads(ports), int(rank))
    else:
        main()
