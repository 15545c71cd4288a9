"""The library never reseeds the user's generators, nor changes torch's global flags."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import paretorch as pt
from paretorch.training import Runtime, prepare, train
from paretorch.training.recipe_values import recipe_from
from paretorch.workflows import tuning
from paretorch.workflows.tickets import IMP, Search, Storage, work

SMALL = {
    "network": "digits-cnn",
    "network_options": {"width": 2},
    "data.name": "digits",
    "data.batch": 360,
    "epochs": 1,
    "optimizer.lr": 0.05,
}
CPU = Runtime(device="cpu", progress="quiet")


def _state() -> dict[str, Any]:
    backends = torch.backends
    return {
        "random": random.getstate(),
        "numpy": str(np.random.get_state()),  # noqa: NPY002  # the legacy one is global
        "torch": torch.get_rng_state().tolist(),
        "threads": torch.get_num_threads(),
        "interop threads": torch.get_num_interop_threads(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "gradients": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "anomaly": torch.is_anomaly_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul": torch.get_float32_matmul_precision(),
        "cudnn": [
            backends.cudnn.enabled,
            backends.cudnn.benchmark,
            backends.cudnn.deterministic,
            backends.cudnn.allow_tf32,
        ],
        "cuda": [backends.cuda.matmul.allow_tf32, backends.cuda.matmul.allow_bf16_reduced_precision_reduction],
        "mkldnn": backends.mkldnn.enabled,
        "autocast": [torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")],
        "flush": torch.set_flush_denormal(False),
    }


def _network() -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):  # layers draw from the global generator
        network = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    for parameter in network.parameters():
        parameter.data.uniform_(-0.1, 0.1, generator=generator)
    return network.eval()


def _inputs() -> torch.Tensor:
    return torch.rand(16, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def _compressed(*methods: Any) -> nn.Module:
    network = _network().train()
    plan = pt.compress(network, *methods, steps=3, example=_inputs())
    optimizer = pt.AvaGrad(plan.param_groups(weight_decay=1e-4))
    for _ in range(3):
        network(_inputs()).square().mean().backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
    plan.metrics()
    plan.harden(optimizer, recalibrate=[_inputs()])
    return plan.finalize().eval()


def _life(folder: Path) -> None:
    small = _compressed(pt.ContinuousSparsification(target=0.5), pt.SMOL(target_bits=3.0))
    pt.save(small, folder / "x.pare")
    pt.load(folder / "x.pare", into=_network())
    str(pt.report(small, example=_inputs(), latency=False))


def _activations(folder: Path) -> None:
    _compressed(pt.SMOLActivations(target_bits=4.0))


def _channels(folder: Path) -> None:
    _compressed(pt.ContinuousSparsification(target=0.3, group="channel"))


def _shrink(folder: Path) -> None:
    pt.shrink(_network(), [_inputs()] * 6, budget="1/4", steps=3, progress="quiet")


def _train(folder: Path) -> None:
    train(recipe_from({**SMALL, "compression.sparsity": 0.5, "finetune": 1}), folder / "run", CPU)


def _resume(folder: Path) -> None:
    recipe = recipe_from(SMALL)
    train(recipe, folder / "run", CPU)
    (folder / "run" / "result.json").unlink()
    train(recipe, folder / "run", CPU, resume=True)


def _prepare(folder: Path) -> None:
    prepare(recipe_from(SMALL), CPU)


def _tickets(folder: Path) -> None:
    storage = Storage.join(folder / "tickets", recipe_from({**SMALL, "data.validation": 200}), [Search(IMP(), 1)])
    work(storage, CPU, log=lambda line: None)


def _tune(folder: Path) -> None:
    for method in ("cgld", "tpe", "cmaes", "random", "grid"):
        tuning.search(lambda a, e, beat: a, [1.0, 2.0, 3.0], [1.0, 2.0], method=method, trials=3)


def _export(folder: Path) -> None:
    pt.export_onnx(_network(), _inputs()[:1], folder / "x.onnx")


def _optimize(folder: Path) -> None:
    pt.optimize(_network(), _inputs()[:1])


USES: list[Callable[[Path], None]] = [
    _life,
    _activations,
    _channels,
    _shrink,
    _train,
    _resume,
    _prepare,
    _tickets,
    _tune,
    _export,
    _optimize,
]


@pytest.mark.filterwarnings("ignore::paretorch.errors.PareWarning")
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__.strip("_"))
def test_nothing_global_changes(use: Callable[[Path], None], tmp_path: Path) -> None:
    use(tmp_path)  # what torch does once, at the first use of anything
    again = tmp_path / "again"
    again.mkdir()
    before = _state()
    use(again)
    after = _state()
    assert {name for name in before if before[name] != after[name]} == set()
