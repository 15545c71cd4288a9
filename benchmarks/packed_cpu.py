"""Aim: networks of few bits are small in the memory of a CPU, and faster than dense ones.

On two CPU threads a Llama of 15 M weights decodes, batch 1, at least 2 × faster at 4 bits and 2.5 × at 2 bits than fp32 torch in eager mode, and takes at most
1.3 × its packed weights and activations. Four Linear layers of 2048 × 2048, batch 1, one thread, against torch's int4, onnxruntime fp32 and its
MatMulNBits. A process that imports `paretorch.runtime`, loads a ResNet-50 of 4 MB and answers one image takes at most 1.5 s on two idle cores, and 1.5 × the memory of
the dense weights.

    python benchmarks/packed_cpu.py                          # all parts
    python benchmarks/packed_cpu.py --stories FOLDER         # a trained Llama (shared/data/get.py stories15m) in place of random weights of the same shapes
    python benchmarks/packed_cpu.py --only decode memory --rounds 41

Weights are rounded to a grid with one step per output, odd numbers of 2 or 4 bits, so that dense and packed networks have equal values; how good such
networks are does not matter here. Candidates take turns, one short round each; the tables show medians over rounds, and of ratios within a round, with quartiles.
With one thread the processor time of the thread is taken, which other work on the machine changes little. With two threads it is the
time on the clock of the fastest token of a round: on a busy machine most tokens wait for a core.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import paretorch as pt
from paretorch.support.memory import release_free_memory

LLAMA = {
    "hidden_size": 288,
    "intermediate_size": 768,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "vocab_size": 32000,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "num_key_value_heads": 6,
    "rms_norm_eps": 1e-5,
}
Times = dict[str, list[float]]
Clock = Callable[[], float]


@torch.no_grad()
def round_to(model: nn.Module, bits: int) -> nn.Module:
    """Odd multiples of a step per output, so that a code of so many bits is a weight."""
    for parameter in {id(p): p for p in model.parameters() if p.dim() == 2}.values():
        step = parameter.abs().amax(1, keepdim=True) / ((1 << bits) - 1)
        odd = torch.floor(parameter / step / 2) * 2 + 1
        parameter.copy_(odd.clamp(1 - (1 << bits), (1 << bits) - 1) * step)
    return model


def empty_llama(config: Any) -> nn.Module:
    from transformers import LlamaForCausalLM
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.model.rotary_emb = LlamaRotaryEmbedding(config)  # which has no weights, and is in no file
    return model


def write_llamas(folder: Path, stories: str | None) -> dict[str, int]:
    """Write files of 4 and 2 bits, and return their bytes."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    dense = LlamaForCausalLM.from_pretrained(stories) if stories else LlamaForCausalLM(LlamaConfig(**LLAMA))
    dense.config.save_pretrained(folder)
    return {
        f"{bits} bits": pt.save(round_to(copy.deepcopy(dense), bits), folder / f"{bits}.pare").total for bits in (4, 2)
    }


def load_llama(folder: Path, bits: int, packed: bool) -> nn.Module:
    from transformers import LlamaConfig

    from paretorch.runtime import load

    return load(folder / f"{bits}.pare", into=empty_llama(LlamaConfig.from_pretrained(folder)), packed=packed).eval()


@torch.inference_mode()
def decode(
    model: nn.Module, tokens: int, clock: Clock, of: Callable[[list[float]], float] = statistics.median
) -> float:
    """Milliseconds per token."""
    token = torch.ones(1, 1, dtype=torch.long)
    cache = model(input_ids=token, use_cache=True).past_key_values
    times = []
    for _ in range(tokens):
        start = clock()
        token = model(input_ids=token, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
        times.append(1e3 * (clock() - start))
    return of(times)


def in_turns(calls: Mapping[str, Callable[[], float]], rounds: int) -> Times:
    for call in calls.values():
        call()
    times: Times = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(call())
    return times


def table(times: Times, base: str) -> dict[str, Any]:
    found = {}
    for name, own in times.items():
        ratios = [b / a for a, b in zip(own, times[base], strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        found[name] = {
            "ms": statistics.median(own),
            "faster": statistics.median(ratios),
            "quartiles": [low, high],
            "rounds": own,
        }
        print(
            f"  {name:32} {statistics.median(own):9.3f} ms   {statistics.median(ratios):6.2f} × ({low:.2f} to {high:.2f})",
            flush=True,
        )
    return found


def measure_decoding(folder: Path, rounds: int, tokens: int = 12) -> dict[str, Any]:
    from transformers.utils import logging

    logging.disable_progress_bar()
    models = {
        "fp32": load_llama(folder, 4, False),
        **{f"{bits} bits": load_llama(folder, bits, True) for bits in (4, 2)},
    }
    found: dict[str, Any] = {}
    for threads, clock, of in ((2, time.perf_counter, min), (1, time.thread_time, statistics.median)):
        torch.set_num_threads(threads)
        print(
            "Decoding, batch 1: " + ("2 threads, fastest token" if threads == 2 else "1 thread, processor time"),
            flush=True,
        )
        calls = {name: lambda own=own, c=clock, o=of: decode(own, tokens, c, o) for name, own in models.items()}
        found[f"{threads} threads"] = table(in_turns(calls, rounds), "fp32")
    with torch.inference_mode():
        ids = torch.randint(0, 32000, (1, 32))
        exact, packed = load_llama(folder, 4, False)(input_ids=ids).logits, models["4 bits"](input_ids=ids).logits
    found["difference"] = float((exact - packed).abs().max() / exact.abs().max())
    print(f"  outputs within {found['difference']:.1e}")
    return found


# Memory, each in a process of its own.


def memory() -> tuple[float, float]:
    """MiB of memory that no file backs, and the most that the process had in memory."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) / 1024, int(fields["VmHWM"].split()[0]) / 1024


def start_peak() -> tuple[float, float]:
    """Let the peak count from here, and return `memory`."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory()


def state_mib(model: nn.Module) -> float:
    return sum(t.nbytes for t in {t.data_ptr(): t for t in model.state_dict().values()}.values()) / 2**20


def warm_up() -> None:
    """Import what transformers imports at its first call, and start the threads."""
    from transformers import LlamaConfig, LlamaForCausalLM

    small = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 1, "vocab_size": 64}
    decode(LlamaForCausalLM(LlamaConfig(**{**LLAMA, **small})).eval(), 8, time.perf_counter)


def llama_process(folder: Path, bits: int, packed: bool) -> None:
    import constriction  # noqa: F401
    from transformers import LlamaConfig

    import paretorch.runtime

    torch.set_num_threads(2)
    model = empty_llama(LlamaConfig.from_pretrained(folder))
    warm_up()
    base, start = start_peak()
    model = paretorch.runtime.load(folder / f"{bits}.pare", into=model, packed=packed).eval()
    loaded, peak = memory()
    decode(model, 64, time.perf_counter)
    used, _ = memory()
    release_free_memory()
    kept, _ = memory()
    print(
        json.dumps(
            {
                "state": state_mib(model),
                "loaded": loaded - base,
                "peak": peak - start,
                "decoded": used - base,
                "kept": kept - base,
            }
        )
    )


def measure_memory(folder: Path) -> dict[str, Any]:
    found = {
        name: child("llama", str(folder), bits, packed)
        for name, bits, packed in (
            ("fp32", "4", "dense"),
            ("4 bits", "4", "packed"),
            ("2 bits", "2", "packed"),
        )
    }
    print(
        "Memory in MiB: weights and buffers, process after loading, peak of loading, after 64 tokens, and of that not free"
    )
    for name, one in found.items():
        one["ratio"] = one["kept"] / one["state"]
        columns = "".join(f"{one[key]:9.1f}" for key in ("state", "loaded", "peak", "decoded", "kept"))
        print(f"  {name:8}{columns}   {one['ratio']:.2f} × its weights", flush=True)
    return found


def child(*arguments: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, __file__, "--child", *arguments], check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# Four Linear layers.


def onnx_call(path: Path, x: Tensor) -> Callable[[], object]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: x.numpy()}
    return lambda: session.run(None, feed)


class Int4(nn.Module):
    """torch's own: (c − 8) · scale + zero in groups of 32 inputs."""

    def __init__(self, linear: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        groups = linear.weight.detach().view(linear.out_features, -1, 32)
        steps = groups.abs().amax(-1) / 8
        codes = torch.round(groups / steps[..., None]).clamp(-8, 7).to(torch.int32).view(linear.weight.shape) + 8
        self.packed = torch._convert_weight_to_int4pack_for_cpu(codes, 1)
        self.scales = torch.stack([steps.T, torch.zeros_like(steps.T)], dim=-1).contiguous().to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.aten._weight_int4pack_mm_for_cpu(x, self.packed, 32, self.scales)


def linears(bits: int, size: int) -> nn.Sequential:
    """Codes of so many bits in groups of 32 inputs, as onnxruntime's MatMulNBits has them."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(size, size, bias=False) for _ in range(4))).eval()
    half = 1 << (bits - 1)
    for layer in model:
        groups = layer.weight.data.view(size, -1, 32)
        codes = torch.randint(-half, half, groups.shape)
        codes[..., 0] = -half
        steps = (torch.rand(size, size // 32, 1) + 0.5) / half / size**0.5
        layer.weight.data = (codes * steps).view(size, size)
    return model


def measure_linears(rounds: int, size: int = 2048, calls: int = 20) -> dict[str, Any]:
    torch.set_num_threads(1)
    x = torch.randn(1, size)
    candidates: dict[str, Callable[[], object]] = {}
    with tempfile.TemporaryDirectory() as scratch, torch.inference_mode():
        for bits in (4, 2):
            model = linears(bits, size)
            path = Path(scratch)
            pt.save(model, path / "m.pare")
            into = nn.Sequential(*(nn.Linear(size, size, bias=False) for _ in range(4)))
            packed = pt.load(path / "m.pare", into=into, packed=True).eval()
            candidates[f"packed, {bits} bits"] = lambda packed=packed: packed(x)
            if bits == 2:
                continue
            candidates["torch fp32"] = lambda model=model: model(x)
            for name, dtype in (
                ("torch int4, fp32 inputs", torch.float32),
                ("torch int4, bf16 inputs", torch.bfloat16),
            ):
                own = nn.Sequential(*(Int4(layer, dtype) for layer in model))
                inputs = x.to(dtype)
                candidates[name] = lambda own=own, inputs=inputs: own(inputs)
            pt.export_onnx(linears_of_floats(size), x, path / "fp32.onnx")
            candidates["onnxruntime fp32"] = onnx_call(path / "fp32.onnx", x)
            pt.export(model, path / "4.onnx", runtime="onnxruntime-int4", example=x)
            candidates["onnxruntime MatMulNBits, 4 bits"] = onnx_call(path / "4.onnx", x)
        print(f"Four Linear {size} × {size}, groups of 32, batch 1, one thread (processor time)")

        def timed(call: Callable[[], object]) -> float:
            times = []
            for _ in range(calls):
                start = time.thread_time()
                call()
                times.append(1e3 * (time.thread_time() - start))
            return statistics.median(times)

        return table(
            in_turns({name: lambda call=call: timed(call) for name, call in candidates.items()}, rounds), "torch fp32"
        )


def linears_of_floats(size: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(size, size, bias=False) for _ in range(4))).eval()


# One image.


def write_resnet(path: Path) -> int:
    """A ResNet-50 of random −1, 0, 1 times a step per channel, with so many zeros that the file takes about 4 MB."""
    from paretorch.zoo import build

    torch.manual_seed(0)
    model = build("resnet50").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                step = parameter.flatten(1).std(1).view(-1, *[1] * (parameter.dim() - 1))
                kept = torch.rand_like(parameter) >= 0.7
                parameter.copy_(parameter.sign() * kept * step)
    return pt.save(model, path).total


def image_process(path: Path, packed: bool, started: float) -> None:
    """Report seconds since the process was started: on the clock and of the processor."""
    from paretorch.runtime import load

    base = start_peak()
    imported = time.process_time()
    model = load(path, packed=packed).eval()
    loaded = time.process_time(), memory()[0] - base[0]
    with torch.inference_mode():
        model(torch.randn(1, 3, 224, 224))
    clock, processor = time.time() - started, time.process_time()
    peak = memory()[1] - base[1]
    print(
        json.dumps(
            {
                "seconds": clock,
                "processor": processor,
                "import": imported,
                "load": loaded[0] - imported,
                "image": processor - loaded[0],
                "loaded": loaded[1],
                "peak": peak,
                "state": state_mib(model),
            }
        )
    )


def measure_image(folder: Path, rounds: int) -> dict[str, Any]:
    size = write_resnet(folder / "resnet50.pare")
    print(
        f"A process that imports torch and the runtime, loads {size:,} bytes and answers one image, threads: {torch.get_num_threads()}"
    )
    runs: dict[str, list[dict[str, Any]]] = {"dense": [], "packed": []}
    for _ in range(rounds):
        for name in runs:
            runs[name].append(child("image", str(folder / "resnet50.pare"), name, repr(time.time())))
    found: dict[str, Any] = {"bytes": size}
    dense = statistics.median(one["state"] for one in runs["dense"])
    for name, own in runs.items():
        found[name] = {key: statistics.median(one[key] for one in own) for key in own[0]}
        found[name]["rounds"] = own
        one = found[name]
        print(
            f"  {name:7} {one['seconds']:.2f} s on the clock, {one['processor']:.2f} s of the processor (imports {one['import']:.2f}, "
            f"load {one['load']:.2f}, image {one['image']:.2f}); {one['state']:.1f} MiB of weights, {one['loaded']:.1f} MiB after loading, "
            f"peak {one['peak']:.1f} MiB = {one['peak'] / dense:.2f} × dense"
        )
    return found


def child_process(kind: str, *rest: str) -> None:
    import transformers.utils.logging as logs

    if kind == "llama":
        logs.set_verbosity_error()
        llama_process(Path(rest[0]), int(rest[1]), rest[2] == "packed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only",
        nargs="+",
        choices=["decode", "memory", "linear", "image"],
        default=["memory", "decode", "linear", "image"],
    )
    parser.add_argument("--stories", help="a folder of transformers with a Llama")
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--json", type=Path, default=Path("results/packed-cpu/cpu.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        found: dict[str, Any] = {"command": "python benchmarks/packed_cpu.py " + " ".join(sys.argv[1:])}
        if {"decode", "memory"} & {*options.only}:
            found["file"] = write_llamas(folder, options.stories)
        if "memory" in options.only:
            found["memory"] = measure_memory(folder)
        if "decode" in options.only:
            found["decode"] = measure_decoding(folder, options.rounds)
        if "linear" in options.only:
            found["linear"] = measure_linears(options.rounds)
        if "image" in options.only:
            found["image"] = measure_image(folder, 5)
    found["machine"] = {
        "processor": processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "torch": torch.__version__,
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(found, indent=1) + "\n")


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    if sys.argv[1:3] == ["--child", "image"]:
        image_process(Path(sys.argv[3]), sys.argv[4] == "packed", float(sys.argv[5]))
    elif sys.argv[1:2] == ["--child"]:
        child_process(*sys.argv[2:])
    else:
        main()
