"""What the compiler makes of the kernel on Hopper: no GPU is needed to look."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

# Not imported here: other tests set up the interpreter before they import it.
pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
ROOT = Path(__file__).parents[2]


def ptx(width: int, batch: int, early: str, cache: Path) -> str:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache)}
    command = [sys.executable, "-m", "tests.deploy_fast.compile_for_sm90", str(width), str(batch), early]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("width", "batch", "early"), [(2, 8, "early"), (4, 16, "late"), (8, 8, "late")])
def test_weights_go_from_memory_to_the_tensor_cores_without_detours(width, batch, early, tmp_path) -> None:
    code = ptx(width, batch, early, tmp_path)
    assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in code
    assert "cp.async.cg.shared.global" in code, "tiles are loaded ahead, 16 bytes at a time"
    assert "ldmatrix" in code, "words are laid out for the tensor cores as they come"
    assert "fma.rn.bf16x2" in code
    assert not re.search(r"cvt\.rn\.(f32|bf16)\.[su]", code), "no integer is converted"
    assert ("griddepcontrol.wait" in code) == (early == "early")
    loop = code[code.index("mma.sync") : code.rindex("mma.sync")]
    assert "st.shared" not in loop, "no weight is moved between threads"
