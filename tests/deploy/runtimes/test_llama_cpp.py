"""GGUF files run by llama.cpp, where llama-cpp-python is installed: its logits are those of torch but for its rounding of inputs to 8 bits."""

from pathlib import Path

import numpy as np
import pytest
import torch

import paretorch as pt
from tests.deploy.runtimes.test_gguf import GGUF, llama

llama_cpp = pytest.importorskip("llama_cpp")


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("runtime", GGUF)
def test_logits_are_those_of_torch(runtime: str, tied: bool, tmp_path: Path) -> None:
    small = pt.compress(llama(tied), pt.SMOL(), steps=1, runtime=runtime).finalize().eval()
    path = pt.export(small, tmp_path / "llama.gguf", runtime=runtime)
    ids = torch.randint(96, (1, 40))
    engine = llama_cpp.Llama(str(path), n_ctx=64, n_batch=64, n_threads=1, logits_all=True, verbose=False)
    try:
        engine.eval(ids[0].tolist())
        found = torch.from_numpy(np.array(engine.scores[:40]))
    finally:
        engine.close()
    wanted = small(input_ids=ids).logits[0].detach()
    assert float((found - wanted).abs().max()) < 0.05 * float(wanted.abs().max())
