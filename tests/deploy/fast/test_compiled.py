"""The compiled kernel for Hopper, which can be inspected without a GPU."""

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
ROOT = Path(__file__).parents[3]


def ptx(width: int, batch: int, early: int, cache: Path) -> str:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache)}
    command = [sys.executable, "-m", "tests.deploy.fast.compile_for_sm90", str(width), str(batch), str(early)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("width", "batch"), [(2, 1), (4, 16), (8, 8)])
def test_weights_go_from_memory_to_the_tensor_cores_without_detours(width, batch, tmp_path) -> None:
    code = ptx(width, batch, 0, tmp_path)
    assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in code
    assert "cp.async.cg.shared.global" in code, "tiles are loaded ahead, 16 bytes at a time"
    assert "ldmatrix" in code, "words are laid out for the tensor cores as they come"
    assert "fma.rn.bf16x2" in code
    assert not re.search(r"cvt\.rn\.(f32|bf16)\.[su]", code), "no integer is converted"
    assert "griddepcontrol" not in code
    loop = code[code.index("mma.sync") : code.rindex("mma.sync")]
    assert "st.shared" not in loop, "no weight is moved between threads"
    assert ".local" not in code, "nothing is spilled by the compiler's first half"


def test_one_row_is_loaded_once_a_tile(tmp_path) -> None:
    code = ptx(2, 1, 0, tmp_path)
    body = code[code.index("mma.sync") :]
    assert body.count("cp.async.commit_group") == 2, "one group for the words, one for x, not one for each of 8 pieces"
    assert len(re.findall(r"\bldmatrix", body.split("bra")[0])) < 8


def test_a_kernel_that_starts_early_waits_before_it_reads(tmp_path) -> None:
    code = ptx(4, 1, 3, tmp_path)
    before, after = code.split("griddepcontrol.wait", 1)
    assert before.count("cp.async.bulk.prefetch.L2.global") == 3, "the tiles of three turns"
    assert not re.search(r"(ld|st|red|atom)\.global|cp\.async\.c", before)
    assert "cp.async" in after
    assert "griddepcontrol.launch_dependents" in after[after.rindex("mma.sync") :], "when all tiles are through"
