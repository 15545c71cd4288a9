"""Claim: in the user's own loop a plan is nearly free.

The README's lines, eager or with `torch.compile(model)`, bf16 autocast on a GPU: milliseconds per step of the dense network and with each
method, and the ratio to dense within the same run. Aims on one H200: 1.15 x with one method, 1.25 x with two or with channels, 1.05 x under
`torch.compile` (1.10 x with two), at most 3 s more for the first six steps, 1.5 x the memory with two methods. On two CPU cores: ResNet-20,
batch 128, 1.10 x; 2,000 small layers: compress, harden and finalize within 5 s each.

How it is measured: all variants of a network live in one process; after six first steps, which are timed by themselves, rounds of `--steps`
steps each are interleaved. Printed are the medians over the rounds, their range, and the median of the ratios to dense of the same round.

    python benchmarks/own_loop.py                              # the table of this machine: a GPU if there is one
    python benchmarks/own_loop.py --networks resnet50 --compile --json own_loop.json
    python benchmarks/own_loop.py --layers 2000                # compress, harden, finalize
"""

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import paretorch as pt
from paretorch.training.folder import environment

STEPS_OF_PLAN = 10_000


@dataclass(frozen=True)
class Network:
    """A network, a batch for it, and its loss."""

    build: Callable[[], nn.Module]
    batch: Callable[[], Tensor]
    loss: Callable[[nn.Module, Tensor], Tensor]


def _classify(model: nn.Module, x: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x).float(), torch.arange(len(x), device=x.device) % 10)


def _predict(model: nn.Module, x: Tensor) -> Tensor:
    return model(input_ids=x, labels=x).loss


def _vision(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import torchvision  # on machines with a GPU

        return getattr(torchvision.models, name)(weights=None)

    return build


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 300)
        self.lstm = nn.LSTM(300, 300, num_layers=3, batch_first=True)
        self.head = nn.Linear(300, 50)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(x))[0][:, -1])


def _llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 288, "intermediate_size": 768, "num_hidden_layers": 6, "num_attention_heads": 6}
    return LlamaForCausalLM(LlamaConfig(vocab_size=32_000, max_position_embeddings=256, **sizes))


def _zoo(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        from paretorch.zoo import build as build_network

        return build_network(name)

    return build


def _images(count: int, size: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(count, 3, size, size)


NETWORKS = {
    "resnet50": Network(_vision("resnet50"), _images(64, 128), _classify),
    "vit_b_16": Network(_vision("vit_b_16"), _images(32, 224), _classify),
    "mobilenet_v2": Network(_vision("mobilenet_v2"), _images(64, 128), _classify),
    "llama15m": Network(_llama, lambda: torch.randint(32_000, (64, 223)), _predict),
    "lstm": Network(_Recurrent, lambda: torch.randint(50, (128, 150)), _classify),
    "resnet20": Network(_zoo("resnet20"), _images(128, 32), _classify),
}
ON_GPU, ON_CPU = ["resnet50", "vit_b_16", "mobilenet_v2", "llama15m", "lstm"], ["resnet20"]
METHODS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "dense": tuple,
    "cs": lambda: (pt.ContinuousSparsification(target=0.95),),
    "smol by weight": lambda: (pt.SMOL(target_bits=2.0),),
    "smol by channel": lambda: (pt.SMOL(target_bits=2.0, group="channel"),),
    "cs + smol": lambda: (pt.ContinuousSparsification(target=0.95), pt.SMOL(target_bits=1.0)),
    "channels": lambda: (pt.ContinuousSparsification(target=0.5, group="channel"),),
}
WITH_CHANNELS = ("resnet50", "mobilenet_v2", "resnet20")


class Run:
    """One variant: the ten lines of the README."""

    def __init__(self, network: Network, variant: str, device: torch.device, compiled: bool) -> None:
        torch.manual_seed(0)
        self.model, self.x = network.build().to(device).train(), network.batch().to(device)
        self.loss, self.device = network.loss, device
        methods = METHODS[variant]()
        before, begun = self._memory(), time.perf_counter()
        example = self.x[:1] if variant == "channels" else None
        self.plan = pt.compress(self.model, *methods, steps=STEPS_OF_PLAN, example=example) if methods else None
        self.compress_s = time.perf_counter() - begun
        groups = self.plan.param_groups(weight_decay=5e-4) if self.plan else self.model.parameters()
        self.optimizer = torch.optim.SGD(groups, lr=1e-4, momentum=0.9)
        self.runner = torch.compile(self.model) if compiled else self.model
        self.first_s = self.time(6)
        self.memory = self._memory(peak=True) - before

    def _memory(self, peak: bool = False) -> int:
        if self.device.type != "cuda":
            return 0
        if peak:
            return torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()

    def time(self, steps: int) -> float:
        """Seconds for so many steps."""
        self._wait()
        begun = time.perf_counter()
        for _ in range(steps):
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
                loss = self.loss(self.runner, self.x)
            loss.backward()
            self.optimizer.step()
            if self.plan is not None:
                self.plan.step()
            self.optimizer.zero_grad()
        self._wait()
        return time.perf_counter() - begun

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def measure(name: str, variants: list[str], args: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    """The rows of one network."""
    chosen = [one for one in variants if one != "channels" or name in WITH_CHANNELS]
    runs = {variant: Run(NETWORKS[name], variant, device, args.compile) for variant in chosen}
    times: dict[str, list[float]] = {variant: [] for variant in runs}
    for _ in range(args.rounds):
        for variant, run in runs.items():
            times[variant].append(run.time(args.steps) / args.steps * 1e3)
    rows = []
    for variant, run in runs.items():
        ratios = [own / dense for own, dense in zip(times[variant], times["dense"], strict=True)]
        row = {
            "network": name,
            "variant": variant,
            "compiled": args.compile,
            "ms": statistics.median(times[variant]),
            "low_ms": min(times[variant]),
            "high_ms": max(times[variant]),
            "ratio": statistics.median(ratios),
            "ratios": ratios,
            "first_six_s": run.first_s,
            "compress_s": run.compress_s,
            "memory": run.memory,
        }
        rows.append(row)
        memory = f"  {run.memory / 2**30:5.2f} GiB" if run.memory else ""
        print(
            f"{name:13} {variant:16} {row['ms']:8.1f} ms ({row['low_ms']:.1f} to {row['high_ms']:.1f})  {row['ratio']:5.3f} x"
            f"  first six {run.first_s:5.1f} s{memory}",
            flush=True,
        )
    return rows


def many_layers(count: int) -> dict[str, float]:
    """Seconds that the life of a plan takes on many small layers."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(count)))
    methods = pt.ContinuousSparsification(target=0.9), pt.SMOL(target_bits=1.0)
    found: dict[str, float] = {}

    def timed(name: str, call: Callable[[], Any]) -> Any:
        begun = time.perf_counter()
        result = call()
        found[name] = time.perf_counter() - begun
        print(f"{count} layers: {name} {found[name]:.2f} s", flush=True)
        return result

    plan = timed("compress", lambda: pt.compress(model, *methods, steps=10))
    model(torch.randn(2, 16)).square().mean().backward()
    optimizer = torch.optim.SGD(plan.param_groups(), lr=1e-3)
    optimizer.step()
    timed("step", plan.step)
    timed("harden", lambda: plan.harden(optimizer))
    timed("finalize", plan.finalize)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", help=f"of {', '.join(NETWORKS)}, separated by commas")
    parser.add_argument("--variants", default=",".join(METHODS), help="which methods; dense is always measured")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=10, help="steps per round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--compile", action="store_true", help="torch.compile(model), as a user would")
    parser.add_argument("--layers", type=int, help="time the life of a plan on so many small layers, and nothing else")
    parser.add_argument("--json", type=Path, help="write everything to this file")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    device = torch.device(args.device)
    command = " ".join(["python", "benchmarks/own_loop.py", *sys.argv[1:]])
    record: dict[str, Any] = {"command": command, "environment": environment(device)}
    if args.layers:
        record["layers"] = {"count": args.layers, "seconds": many_layers(args.layers)}
    else:
        names = args.networks.split(",") if args.networks else ON_GPU if device.type == "cuda" else ON_CPU
        variants = ["dense", *(one for one in args.variants.split(",") if one != "dense")]
        record["rows"] = [row for name in names for row in measure(name, variants, args, device)]
    if args.json:
        args.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
