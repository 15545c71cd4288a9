"""The loader for applications imports little, and loads what `paretorch.load` loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

import paretorch as pt
from paretorch import runtime
from tests.deploy.packed.weights import set_few_bits


def test_it_imports_neither_methods_nor_training_nor_the_coder() -> None:
    code = (
        "import sys; from paretorch.runtime import load\n"
        "rooms = ('methods', 'optim', 'training', 'workflows', 'report', 'zoo', 'cli', 'core.plan', 'deploy.onnx')\n"
        "heavy = ('constriction', 'torch._dynamo', 'sympy', 'onnx', 'safetensors')\n"
        "print([m for m in (*(f'paretorch.{room}' for room in rooms), *heavy) if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_it_loads_a_zoo_network_without_the_compiler_of_torch(tmp_path: Path) -> None:
    from paretorch.zoo import build

    pt.save(build("resnet20"), tmp_path / "model.pare")
    code = (
        "import sys; from paretorch.runtime import load\n"
        "load(sys.argv[1])\n"
        "print([m for m in ('paretorch.training', 'paretorch.methods', 'torch._dynamo', 'sympy') if m in sys.modules])\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "model.pare")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_it_loads_packed_weights(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 64))
    set_few_bits(model[0], "2 bits odd")
    pt.save(model, tmp_path / "model.pare")
    packed = runtime.load(tmp_path / "model.pare", into=nn.Sequential(nn.Linear(64, 64)), packed=True)
    assert torch.equal(packed[0].weight, model[0].weight)


def test_files_without_coded_words_need_no_coder(tmp_path: Path) -> None:
    pt.save(nn.Linear(3, 2), tmp_path / "model.pare")
    code = (
        "import sys; sys.modules['constriction'] = None\n"
        "import torch; from paretorch.runtime import load\n"
        "load(sys.argv[1], into=torch.nn.Linear(3, 2))\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "model.pare")]
    assert subprocess.run(command, capture_output=True, text=True, check=False).returncode == 0
