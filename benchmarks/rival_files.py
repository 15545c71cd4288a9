"""Claim: below int8, at the bytes of each rival's real file, `pt.shrink` keeps more of a trained network than the rival does.

Two small networks are trained on the digits of the package: one of convolutions with batch norm, one of linear layers. Each rival writes the file that its users
would ship, and what is measured is the network that this file gives when it is read again:

    fp16          a safetensors file in half precision
    int8          a safetensors file of int8 weights by channel
    onnxruntime   a static int8 ONNX file, calibrated on 16 batches, run by onnxruntime
    gmp90 gmp95   gradual magnitude pruning with the dense network as the teacher, then half precision, a mask and zstd at its highest level
    torchao       int4 weights in groups of 32 (linear layers alone), as torch.save writes them, and at the bytes of packed codes
    nncodec       ISO/IEC 15938-17 (NNC), at three quantization parameters

Then `pt.shrink` gets each rival's bytes as its budget, without training and with as many steps as GMP has. Rivals that are not installed are left out, and said to be.
Accuracy and cross entropy are on the test digits, which nothing was chosen by.

    python benchmarks/rival_files.py --json results/rival-files/digits.json
"""

import argparse
import copy
import importlib.abc
import importlib.machinery
import importlib.util
import io
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
from unittest.mock import MagicMock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import paretorch as pt
from paretorch.deploy.rivals.files import (
    OnnxNetwork,
    read_plain,
    read_sparse,
    read_weight_int8,
    write_int8,
    write_plain,
    write_sparse,
    write_weight_int8,
)
from paretorch.methods.sparsity.rivals import GradualMagnitude
from paretorch.training.folder import environment
from paretorch.workflows.shrink import shrink_network
from paretorch.zoo.data import digits
from paretorch.zoo.networks.plain import DigitsCNN

GROUP = 32  # weights that share a step of int4
Found = tuple[nn.Module, int]


class EmptyModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for packages that nncodec imports for its examples alone."""

    names = frozenset(
        (
            "torchvision",
            "cv2",
            "wandb",
            "sklearn",
            "timm",
            "flwr",
            "pycocotools",
            "skimage",
            "matplotlib",
            "h5py",
            "tensorflow",
            "keras",
            "ray",
            "seaborn",
            "torchinfo",
            "ptflops",
        )
    )

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] not in self.names:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        module = MagicMock()
        module.__path__, module.__spec__, module.__name__ = [], spec, spec.name
        return module

    def exec_module(self, module: Any) -> None:
        pass


def with_empty_modules() -> None:
    if not any(isinstance(finder, EmptyModules) for finder in sys.meta_path):
        sys.meta_path.append(EmptyModules())  # behind all others: what is installed is imported


class Digits:
    def __init__(self) -> None:
        data = digits.load()
        self.train, self.test = (((x.float() / 255 - 0.3) / 0.37, y) for x, y in (data.train, data.test))

    def batches(self, seed: int, size: int = 64) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        while True:
            rows = torch.randint(len(self.train[0]), (size,), generator=generator)
            yield self.train[0][rows], self.train[1][rows]

    def inputs(self, seed: int) -> Iterator[Tensor]:
        return (x for x, _ in self.batches(seed))

    @torch.no_grad()
    def measure(self, model: nn.Module) -> dict[str, float]:
        logits = model(self.test[0]).float()
        right = float((logits.argmax(1) == self.test[1]).double().mean())
        return {"accuracy": 100.0 * right, "nats": float(F.cross_entropy(logits, self.test[1]))}


def convolutions() -> nn.Module:
    return DigitsCNN()


def linear() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )


def train_dense(data: Digits, build: Callable[[], nn.Module], steps: int) -> nn.Module:
    torch.manual_seed(0)
    model = build()
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for x, y in islice(data.batches(0), steps):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return model.eval()


class Rivals:
    """What others make of one trained network."""

    def __init__(self, dense: nn.Module, data: Digits, steps: int, folder: Path) -> None:
        self.dense, self.data, self.steps, self.folder = dense, data, steps, folder

    def fp16(self) -> Found:
        path = write_plain(self.dense, self.folder / "fp16.safetensors", torch.float16)
        return read_plain(path, self.dense), path.stat().st_size

    def int8(self) -> Found:
        path = write_weight_int8(self.dense, self.folder / "int8.safetensors")
        return read_weight_int8(path, self.dense), path.stat().st_size

    def onnxruntime(self) -> Found:
        path = write_int8(self.dense, self.folder / "int8.onnx", list(islice(self.data.inputs(1), 16)))
        return OnnxNetwork(path), path.stat().st_size

    def gmp90(self) -> Found:
        return self._pruned(0.9)

    def gmp95(self) -> Found:
        return self._pruned(0.95)

    def _pruned(self, target: float) -> Found:
        torch.manual_seed(1)
        model, search = copy.deepcopy(self.dense).train(), round(0.7 * self.steps)
        plan = pt.compress(model, GradualMagnitude(target=target, every=5), steps=search)
        optimizer = torch.optim.SGD(plan.param_groups(), 0.02, momentum=0.9, nesterov=True)
        for step, x in enumerate(islice(self.data.inputs(1), self.steps), 1):
            for group in optimizer.param_groups:
                group["lr"] = 0.01 * (1.0 + math.cos(math.pi * step / self.steps))
            with torch.no_grad():
                wanted = self.dense(x)
            pt.distillation_loss(model(x), wanted).backward()
            optimizer.step()
            if not plan.is_hard:
                plan.step()
            optimizer.zero_grad()
            if step == search:
                plan.harden(optimizer)
        path = write_sparse(plan.finalize().eval(), self.folder / "gmp.zst")
        return read_sparse(path, self.dense), path.stat().st_size

    def torchao(self) -> Found:
        """As `torch.save` writes it where int4 kernels are there; else its rounding, in packed codes and bfloat16 steps."""
        from torchao.quantization import IntxWeightOnlyConfig, quantize_
        from torchao.quantization.granularity import PerGroup

        model = copy.deepcopy(self.dense)
        quantize_(model, IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(GROUP)))
        packed = 0
        for module in self.dense.modules():
            if isinstance(module, nn.Linear):
                numbers = module.weight.numel()
                packed += numbers // 2 + 2 * (numbers // GROUP) + 4 * module.out_features
        return model, packed

    def _nncodec(self, parameter: int) -> Found:
        with_empty_modules()
        from nncodec.nn import decode, encode

        own = {key: value for key, value in self.dense.state_dict().items() if value.is_floating_point()}
        arrays = {key: value.numpy().astype("float32") for key, value in own.items()}
        stream = bytearray(encode(arrays, args={"qp": parameter, "verbose": False, "results": str(self.folder)}))
        model = copy.deepcopy(self.dense)
        model.load_state_dict({key: torch.as_tensor(value) for key, value in decode(stream).items()}, strict=False)
        return model.eval(), len(stream)

    def nncodec32(self) -> Found:
        return self._nncodec(-32)

    def nncodec24(self) -> Found:
        return self._nncodec(-24)

    def nncodec16(self) -> Found:
        return self._nncodec(-16)

    def names(self) -> list[str]:
        found = ["fp16", "int8", "onnxruntime", "gmp90", "gmp95", "nncodec32", "nncodec24", "nncodec16"]
        has_convolutions = any(isinstance(module, nn.Conv2d) for module in self.dense.modules())
        return found if has_convolutions else [*found, "torchao"]


NEEDS = {"onnxruntime": "onnxruntime", "torchao": "torchao", "gmp90": "zstandard", "gmp95": "zstandard"}


def is_installed(name: str) -> bool:
    package = "nncodec" if name.startswith("nncodec") else NEEDS.get(name)
    return package is None or importlib.util.find_spec(package) is not None


def ours(dense: nn.Module, data: Digits, budget: int, steps: int) -> tuple[nn.Module, int]:
    found = shrink_network(dense, data.inputs(1), budget=budget, steps=steps, progress="quiet")
    file = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        pt.save(found.model, Path(folder) / "model.pare")
        file.write((Path(folder) / "model.pare").read_bytes())
        small = pt.load(Path(folder) / "model.pare", into=copy.deepcopy(dense))
    return small.eval(), file.tell()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=350)
    parser.add_argument("--dense-steps", type=int, default=600)
    parser.add_argument("--networks", default="convolutions,linear")
    parser.add_argument("--only", default="", help="rivals, by name; all if empty")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    data, rows = Digits(), []

    def keep(**row: Any) -> None:
        rows.append(row)
        print(json.dumps(row), flush=True)
        if options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            told = {"environment": environment(torch.device("cpu")), "steps": options.steps, "rows": rows}
            options.json.write_text(json.dumps(told, indent=1) + "\n")

    for name in options.networks.split(","):
        dense = train_dense(data, {"convolutions": convolutions, "linear": linear}[name], options.dense_steps)
        size = 4 * sum(one.numel() for one in dense.state_dict().values())
        keep(network=name, way="dense", bytes=size, **data.measure(dense))
        with tempfile.TemporaryDirectory() as folder:
            rivals = Rivals(dense, data, options.steps, Path(folder))
            for rival in [one for one in rivals.names() if not options.only or one in options.only.split(",")]:
                if not is_installed(rival):
                    keep(network=name, way=rival, missing=True)
                    continue
                start = time.time()
                try:
                    model, size = getattr(rivals, rival)()
                    measured = data.measure(model)
                except Exception as error:  # of a package that is not ours
                    keep(network=name, way=rival, failed=f"{type(error).__name__}: {error}"[:300])
                    continue
                keep(network=name, way=rival, bytes=size, seconds=round(time.time() - start, 1), **measured)
                if rival in ("fp16", "int8"):  # onnxruntime's file is about as large
                    continue
                for steps in (0, options.steps):
                    start = time.time()
                    small, own = ours(dense, data, size, steps)
                    told = {"bytes": own, "seconds": round(time.time() - start, 1), **data.measure(small)}
                    keep(network=name, way=f"shrink, {steps} steps", against=rival, **told)


if __name__ == "__main__":
    main()
