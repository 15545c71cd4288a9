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
    python benchmarks/own_loop.py --host                       # what a step costs the host, on any machine

`--host` needs no GPU. A GPU that waits for its host is as slow as the host, so what counts there is the host's time: the networks have the
layers of a ResNet-50 and of a 15 M Llama, but tiny ones, on one thread. Timed are `optimizer.step()` and `plan.step()` alone, since forward and
backward pass are those of the dense network; rounds are interleaved, and the medians beyond dense are printed. Operations, launches and Python
calls are counted. A multi-tensor operation counts as one launch per 50 tensors if all its lists have tensors of the same shapes, else as one per
tensor, which is what it is on a GPU. Temporary memory is the most that the plan's own tensors take at once beyond what they take between steps.
"""

import argparse
import gc
import json
import statistics
import sys
import time
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

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
        gc.collect()  # what an earlier variant left in cycles would be given back in the middle of this one
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


class _Bottleneck(nn.Module):
    """A block of ResNet-50, with a few channels."""

    def __init__(self, inputs: int, width: int, shortcut: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 4 * width, 1, bias=False),
            nn.BatchNorm2d(4 * width),
        )
        self.shortcut = nn.Conv2d(inputs, 4 * width, 1, bias=False) if shortcut else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return (self.body(x) + self.shortcut(x)).relu()


def _tiny_resnet50() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU()]
    inputs = 4
    for width, blocks in ((2, 3), (4, 4), (8, 6), (16, 3)):
        for block in range(blocks):
            layers.append(_Bottleneck(inputs, width, shortcut=block == 0))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


class _Decoder(nn.Module):
    """The weights of a Llama's layer, with few features."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.out(self.query(x).softmax(-1) * self.key(x) * self.value(x))
        return x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))


def _tiny_llama() -> nn.Module:
    return nn.Sequential(nn.Embedding(50, 16), *(_Decoder(16) for _ in range(6)), nn.Linear(16, 50, bias=False))


HOST_NETWORKS = {
    "resnet50 layers": Network(_tiny_resnet50, _images(2, 8), _classify),
    "llama15m layers": Network(_tiny_llama, lambda: torch.randint(50, (2, 4)), lambda m, x: m(x).square().mean()),
}


class Counter(TorchDispatchMode):
    """Counts operations, the launches that they would be on a GPU, and the most memory that new tensors take at once."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.launches = self.live = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operations += 1
        self.launches += _launches(func, args)
        for one in result if isinstance(result, list | tuple) else [result]:
            if isinstance(one, Tensor):
                self._follow(one, args)
        return result

    def _follow(self, tensor: Tensor, args: Any) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata in self._seen or any(
            isinstance(one, Tensor) and one.untyped_storage()._cdata == storage._cdata for one in _tensors(args)
        ):
            return
        address, size = storage._cdata, storage.nbytes()
        self._seen.add(address)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, address, size)

    def _free(self, address: int, size: int) -> None:
        self._seen.discard(address)
        self.live -= size


def _tensors(args: Any) -> list[Tensor]:
    nested = [one if isinstance(one, list | tuple) else [one] for one in args]
    return [one for group in nested for one in group if isinstance(one, Tensor)]


def _launches(func: Any, args: Any) -> int:
    name, schema = func.overloadpacket.__name__, func._schema
    if name.startswith("_foreach_"):
        lists = [one for one in args if isinstance(one, list | tuple) and one and isinstance(one[0], Tensor)]
        if len({tuple(tensor.shape for tensor in one) for one in lists}) == 1:
            return -(-len(lists[0]) // 50)
        return len(lists[0])
    is_view = any(one.alias_info and not one.alias_info.is_write for one in schema.returns)
    return 0 if is_view or name.startswith("empty") or name in ("detach", "_local_scalar_dense") else 1


class HostRun:
    """One variant of a tiny network."""

    def __init__(self, network: Network, variant: str) -> None:
        torch.manual_seed(0)
        self.model, self.x, self.loss = network.build().train(), network.batch(), network.loss
        methods = METHODS[variant]()
        example = self.x[:1] if variant == "channels" else None
        self.plan = pt.compress(self.model, *methods, steps=STEPS_OF_PLAN, example=example) if methods else None
        groups = self.plan.param_groups(weight_decay=5e-4) if self.plan else self.model.parameters()
        self.optimizer = torch.optim.SGD(groups, lr=1e-4, momentum=0.9, foreach=True)
        for _ in range(6):
            self.time()

    def time(self) -> float:
        """Milliseconds of one step of optimizer and plan."""
        self.loss(self.model, self.x).backward()
        begun = time.perf_counter()
        self.step()
        taken = time.perf_counter() - begun
        self.optimizer.zero_grad()
        return taken * 1e3

    def step(self) -> None:
        self.optimizer.step()
        if self.plan is not None:
            self.plan.step()

    def count(self) -> dict[str, float]:
        """Operations, launches, Python calls and temporary memory of a step, the last in tensors of the size of all weights."""
        self.loss(self.model, self.x).backward()
        with Counter() as counter:
            self.step()
        self.optimizer.zero_grad()
        self.loss(self.model, self.x).backward()
        calls = 0

        def count(_frame: Any, event: str, _arg: Any) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(count)
        self.step()
        sys.setprofile(None)
        self.optimizer.zero_grad()
        weights = sum(one.numel() * one.element_size() for one in self.model.parameters() if one.dim() > 1)
        memory = (counter.peak - counter.live) / weights * (1 if self.plan is None else self._share())
        found = {"operations": counter.operations, "launches": counter.launches, "python_calls": calls}
        return {**found, "temporary": memory}

    def _share(self) -> float:
        """All parameters over the weights: θ and decisions are parameters, too."""
        assert self.plan is not None
        weights = sum(one.numel() for one in self.plan.dense_state_dict().values() if one.dim() > 1)
        return sum(one.numel() for one in self.model.parameters() if one.dim() > 1) / weights


def host(names: list[str], variants: list[str], rounds: int) -> list[dict[str, Any]]:
    """What a step costs the host beyond the dense network's."""
    torch.set_num_threads(1)
    rows = []
    for name in names:
        chosen = [one for one in variants if one != "channels" or name == "resnet50 layers"]
        runs = {variant: HostRun(HOST_NETWORKS[name], variant) for variant in chosen}
        times: dict[str, list[float]] = {variant: [] for variant in runs}
        for _ in range(rounds):
            for variant, run in runs.items():
                times[variant].append(run.time())
        dense_ms, dense = statistics.median(times["dense"]), runs["dense"].count()
        for variant, run in runs.items():
            counted = run.count()
            beyond = {key: counted[key] - dense[key] for key in ("operations", "launches", "python_calls")}
            row = {"network": name, "variant": variant, "ms": statistics.median(times[variant]) - dense_ms, **beyond}
            row |= {"temporary": counted["temporary"], "low_ms": min(times[variant]) - min(times["dense"])}
            if variant == "dense":
                row |= {**counted, "ms": dense_ms, "low_ms": min(times["dense"])}
            rows.append(row)
            print(
                f"{name:16} {variant:16} {row['ms']:7.3f} ms (least {row['low_ms']:.3f})  {row['operations']:5.0f} operations"
                f"  {row['launches']:5.0f} launches  {row['python_calls']:6.0f} Python calls  {row['temporary']:4.1f} x temporary",
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
    parser.add_argument("--rounds", type=int, help="how often each variant is measured: 7, or 100 with --host")
    parser.add_argument("--compile", action="store_true", help="torch.compile(model), as a user would")
    parser.add_argument("--layers", type=int, help="time the life of a plan on so many small layers, and nothing else")
    parser.add_argument("--host", action="store_true", help="measure what a step costs the host, and nothing else")
    parser.add_argument("--json", type=Path, help="write everything to this file")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    device = torch.device(args.device)
    command = " ".join(["python", "benchmarks/own_loop.py", *sys.argv[1:]])
    variants = ["dense", *(one for one in args.variants.split(",") if one != "dense")]
    record: dict[str, Any] = {"command": command, "environment": environment(device)}
    if args.layers:
        record["layers"] = {"count": args.layers, "seconds": many_layers(args.layers)}
    elif args.host:
        names = args.networks.split(",") if args.networks else list(HOST_NETWORKS)
        record["host"] = host(names, variants, args.rounds or 100)
    else:
        names = args.networks.split(",") if args.networks else ON_GPU if device.type == "cuda" else ON_CPU
        args.rounds = args.rounds or 7
        record["rows"] = [row for name in names for row in measure(name, variants, args, device)]
    if args.json:
        args.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
